// Who waits for room in the inbox, and whose turn it is when there is some.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

namespace coordd {

// PURE. Not thread-safe. Small messages go before large ones, since what says that a worker lives
// is small; both in order of arrival. Of the large ones each job has one turn after the other, so
// that a job with a thousand of them delays another job's by one.
class WaitingLine {
 public:
  // Up to here a message is small: heartbeats, cached reports, most of what nodes send.
  static constexpr size_t kSmallBytes = 4096;
  static bool IsSmall(size_t bytes) { return bytes <= kSmallBytes; }

  struct Place {
    uint64_t job = 0;  // any number that stands for it
    size_t bytes = 0;
    std::function<void()> resume;
  };

  void Add(Place place);
  // Those for whom there is room: at most so many small ones, and large ones of so many bytes. One
  // large one is always taken if `large_bytes` is not 0, however large it is.
  std::vector<std::function<void()>> Take(size_t small, size_t large_bytes);

  // Whether somebody with a message of this kind is here already, who comes first.
  bool HasOf(size_t bytes) const { return IsSmall(bytes) ? !small_.empty() : !large_.empty(); }
  bool empty() const { return small_.empty() && large_.empty(); }

 private:
  std::deque<std::function<void()>> small_;
  std::map<uint64_t, std::deque<Place>> large_;  // by job; no line is empty
  uint64_t last_job_ = 0;                        // that had a turn
};

}  // namespace coordd
