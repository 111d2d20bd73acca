// Who waits for room in the inbox, and whose turn it is when there is some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

namespace coordd {

// What a message of a session takes of a turn.
struct MessageSize {
  // Up to here a message is small: heartbeats, cached reports, most of what nodes send.
  static constexpr size_t kSmallBytes = 4096;
  static constexpr size_t kSmallCost = 16 << 10;

  size_t bytes = 0;  // on the wire
  // The bytes that its words would have if each worker sent its own: what several members of a node
  // say comes once, and is told to the state as often as it was said.
  size_t told_bytes = 0;

  size_t cost() const { return bytes > told_bytes ? bytes : told_bytes; }
  bool is_small() const { return bytes <= kSmallBytes && cost() <= kSmallCost; }
};

// PURE. Not thread-safe. Small messages go before large ones, since what says that a worker lives
// is small; both in order of arrival. Of the large ones each job has one turn after the other, so
// that a job with a thousand of them delays another job's by one.
class WaitingLine {
 public:
  struct Place {
    uint64_t job = 0;  // any number that stands for it
    MessageSize size = {};
    std::function<void()> resume;
  };

  void Add(Place place);
  // What there is room for. Of each kind one is taken where there is any room, however large it is.
  struct Room {
    size_t messages = 0;    // small ones
    size_t small_cost = 0;  // of all of them
    size_t large_cost = 0;  // of the large ones
  };
  std::vector<std::function<void()>> Take(Room room);

  // Whether somebody with a message of this kind is here already, who comes first.
  bool HasOf(const MessageSize& size) const {
    return size.is_small() ? !small_.empty() : !large_.empty();
  }
  bool empty() const { return small_.empty() && large_.empty(); }

 private:
  static std::function<void()> TakeFront(std::deque<Place>& line, size_t& cost);

  std::deque<Place> small_;
  std::map<uint64_t, std::deque<Place>> large_;  // by job; no line is empty
  uint64_t last_job_ = 0;                        // that had a turn
};

}  // namespace coordd
