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
  static constexpr size_t kSmallCost = 64 << 10;

  size_t bytes = 0;  // on the wire
  // The bytes that its words would have if each worker sent its own: what several members of a node
  // say comes once, and is told to the state as often as it was said.
  size_t told_bytes = 0;

  size_t cost() const { return bytes > told_bytes ? bytes : told_bytes; }
  bool is_small() const { return bytes <= kSmallBytes && cost() <= kSmallCost; }
};

// PURE. Not thread-safe. Small messages go before large ones, since what says that a worker lives
// is small; both in order of arrival. Of the large ones each caller has one turn after the other,
// and of a caller's each of his jobs: so whoever has a thousand of them, in a hundred jobs, delays
// another's by one. A message of which a part was
// told goes before the others of its job, and few are begun at a time: once it is read it takes
// sixteen times the memory.
class WaitingLine {
 public:
  // Large messages of which parts wait at a time, of all callers and of one; and as many more as
  // one turn takes.
  static constexpr int kBegunMax = 8;
  static constexpr int kBegunOfOne = 3;

  struct Place {
    // Any numbers that stand for them.
    uint64_t account = 0;  // whose it is
    uint64_t job = 0;
    MessageSize size = {};
    bool has_begun = false;  // parts of it were told
    std::function<void()> resume = {};
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
  struct Large {
    std::deque<Place> begun, other;
  };
  struct Account {
    std::map<uint64_t, Large> jobs;  // none has no place
    uint64_t last = 0;               // job that had a turn
    int begun = 0;                   // of all of them
  };
  using Accounts = std::map<uint64_t, Account>;

  static std::function<void()> TakeFront(std::deque<Place>& line, size_t& cost);
  // Whether anything of the account, or of the job, may be taken now.
  bool MayTake(const Account& account) const;
  bool MayTake(const Account& account, const Large& large) const;
  bool MayBegin(const Account& account) const {
    return begun_ < kBegunMax && account.begun < kBegunOfOne;
  }
  std::function<void()> TakeLarge(Accounts::iterator account, size_t& cost);

  std::deque<Place> small_;
  Accounts large_;     // none has no job
  uint64_t last_ = 0;  // account that had a turn
  int begun_ = 0;
};

}  // namespace coordd
