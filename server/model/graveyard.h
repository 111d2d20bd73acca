// What is over and large is freed in parts, over turns, so that nobody waits until all of it is.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

namespace coordd {

// Something that is over: it does nothing any more but take memory, which counts for its owner
// until it is freed.
class Remains {
 public:
  virtual ~Remains() = default;
  // Frees about so many pieces of it, each a few allocations; how many it has freed. Fewer than
  // that: nothing large is left of it.
  virtual int64_t Free(int64_t most) = 0;
};

// Frees the first elements of a map, at most so many; how many.
template <typename Map>
int64_t FreeFirst(Map& map, int64_t most) {
  int64_t freed = 0;
  for (auto it = map.begin(); it != map.end() && freed < most; ++freed) map.erase(it++);
  return freed;
}

// PURE. Not thread-safe.
class Graveyard {
 public:
  // The largest pieces are process sets: these are 5 ms of a busy processor.
  static constexpr int64_t kPiecesATurn = 1024;

  void Bury(std::unique_ptr<Remains> remains) {
    if (remains != nullptr) remains_.push_back(std::move(remains));
  }
  // Once a turn: of what was buried first.
  int64_t Free(int64_t most = kPiecesATurn) {
    int64_t freed = 0;
    while (!remains_.empty() && freed < most) {
      freed += remains_.front()->Free(most - freed);
      if (freed < most) remains_.pop_front();
    }
    return freed;
  }
  bool empty() const { return remains_.empty(); }

 private:
  std::deque<std::unique_ptr<Remains>> remains_;
};

}  // namespace coordd
