// A transport over shared memory, between the processes (or threads) of one node.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/owned_fd.h"
#include "worker/handover/shm_segment.h"
#include "worker/interfaces/transport.h"
#include "worker/transport/shm/shm_channel.h"

namespace coordd {

// Each rank has one segment with a ring for every other rank of its node to write into. Segments
// have no name and end with their processes. A peer's end is seen by the end of the socket over
// which the memory was handed over, and of its process (pidfd): what it had sent before is still
// received.
class ShmTransport final : public Transport {
 public:
  // Rings of one segment together: a node of 64 ranks shares 0.5 GiB at most, of which only rings
  // that have been used exist.
  static constexpr int64_t kSegmentBytesMax = int64_t{8} << 20;
  // A ring should stay in the second-level cache of the two cores that share it, and be large
  // enough that one can work on while the other one is not scheduled for a moment.
  static constexpr int64_t kRingBytesMax = int64_t{1} << 20;
  // With more local ranks rings would be smaller than 32 KiB.
  static constexpr int32_t kMaxLocalRanks = 256;

  // `clock` outlives it.
  explicit ShmTransport(Clock& clock = Clock::Real()) : clock_(clock) {}
  ~ShmTransport() override;

  absl::string_view name() const override { return "shm"; }
  // Connects the ranks of this rank's node; the others are not its business.
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override;
  // REQUIRES: the peer shares the node.
  void Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) override;
  void Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) override;
  void ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) override {
    Receive(from, tag, landing, TakenFrom(landing, std::move(taken)));
  }
  bool Progress() override;
  void LookAtPeers() override { calls_until_check_ = 0; }
  void Abort() override { aborted_.store(true, std::memory_order_release); }

  // The capacity of a ring, a power of two.
  static int64_t RingCapacityBytes(int32_t local_ranks);

 private:
  struct Peer {
    Rank rank;
    ShmSegment segment;  // the peer's, with the ring that this rank writes
    OwnedFd socket;
    OwnedFd process;
    std::unique_ptr<ShmChannel> channel;
  };

  Peer& PeerOf(Rank rank);
  void CloseEndedPeers(ShmChannel::Finished& finished);
  bool FailAll(const absl::Status& status);

  // Constant after construction.
  Clock& clock_;

  // Thread-safe by itself.
  std::atomic<bool> aborted_ = false;

  // Touched by the owner's thread.
  int32_t first_local_rank_ = 0;
  int32_t self_index_ = 0;  // on the node
  ShmSegment own_segment_;
  std::vector<Peer> peers_;  // in rank order, without this rank
  int32_t calls_until_check_ = 0;
};

}  // namespace coordd
