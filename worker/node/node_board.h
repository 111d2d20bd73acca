// How ranks of a node tell each other how far they are: cache lines in memory that all have mapped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/protocol/types.h"
#include "worker/interfaces/doorbell.h"

namespace coordd {

// What a member says when it reaches a step. The payload belongs to the step and lies behind its
// number, so that up to 48 bytes arrive with the number's own cache line. Fixed layout.
struct alignas(64) BoardPost {
  static constexpr int64_t kPayloadBytes = 4144;
  static constexpr int64_t kFirstLineBytes = 48;  // of the payload, with the number
  // Where in the payload an input of so many bytes lies: what does not fit the first line begins
  // with the second one, so that no element and no vector of them is on two lines.
  static constexpr int64_t PlaceFor(int64_t size_bytes) {
    return size_bytes <= kFirstLineBytes ? 0 : kFirstLineBytes;
  }
  std::atomic<int64_t> step;
  uint64_t call;  // of the first step of a collective: which one (node_call.h)
  std::byte payload[kPayloadBytes];
};
static_assert(sizeof(BoardPost) == 4160 && std::atomic<int64_t>::is_always_lock_free);

// Of one lane of one member, written by it alone, but for the bell. Steps count from 1 over all
// collectives of the lane, which its members run in one order, and are never reset: who looks late
// sees "at least". Step s is said in posts[s % 2]. Two are enough: only the first step s of a
// collective has a payload, it is said when all have said s - 1, and nobody says s - 1 before it
// has read what it needs of the payloads before.
struct alignas(64) BoardEntry {
  std::atomic<int64_t> finished;  // the last step that the member has read all it needs of
  std::atomic<int32_t> ending;    // not 0: the member says no further step (NodeLane::Ending)
  BoardPost posts[2];
  // The bell of a lane with a thread of its own. It is away from what is written: cores fetch lines
  // by pairs.
  Doorbell bell;

  int64_t reached(int64_t step) const {
    return posts[step % 2].step.load(std::memory_order_acquire);
  }
};

// A rank's entries, found by lane. One thread of the owning rank claims and frees them, any thread
// of any process finds them. Fresh memory, all zero, is an empty board.
class NodeBoard {
 public:
  // Lanes of one rank at a time: all comms that it may have (kMaxComms), all schedules that may be
  // in force, and as many process sets within its node as nobody has had yet. Those of schedules
  // end while others begin, and an entry is free again once all members are through with it.
  // Entries that nobody has claimed take no memory.
  static constexpr int32_t kEntries = 1 << 13;
  static int64_t SizeBytes();

  // `memory`: 64-byte aligned, SizeBytes(), outlives the board.
  explicit NodeBoard(std::byte* memory);

  // A new entry, at step 0; nullptr: all are taken. REQUIRES: the lane has none, and never had: its
  // number is not used again.
  BoardEntry* Claim(LaneId lane);
  // Frees a lane's entry, which nobody reads any more.
  void Free(LaneId lane);
  // nullptr: the owner has not claimed it yet, or has freed it.
  BoardEntry* Find(LaneId lane) const;

  // The bell at which the rank's thread waits that runs all lanes without a thread of their own.
  Doorbell& bell() const { return directory_->bell; }
  // Rings this bell and those of all entries. Any thread of the owning rank may call it.
  void RingAll() const;
  // The rank has left its job: it says no further step on any lane. Any thread of it may call this.
  void Leave() const { directory_->left.store(1, std::memory_order_release); }
  bool left() const { return directory_->left.load(std::memory_order_acquire) != 0; }

 private:
  struct Directory {
    Doorbell bell;
    alignas(64) std::atomic<int32_t> used;             // no entry from here on was ever claimed
    std::atomic<int32_t> left;                         // 1: the rank has
    alignas(64) std::atomic<int32_t> lanes[kEntries];  // lane + 1; 0: free
  };

  Directory* const directory_;
  BoardEntry* const entries_;
};

}  // namespace coordd
