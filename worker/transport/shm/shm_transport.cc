#include "worker/transport/shm/shm_transport.h"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "worker/handover/shm_handover.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

// Calls of Progress between two looks at the peers, which cost a system call: a call that found
// nothing counts this much more than one that moved something. With IdleWait a peer's end is seen
// within 64 sleeps, 32 ms; where sleeps are longer LookAtPeers says so.
constexpr int32_t kCallsPerCheck = 4096;
constexpr int32_t kIdleCallWeight = 64;

// The ring in a segment that the rank with index `writer` on the node writes.
std::byte* RingOf(const ShmSegment& segment, int32_t writer, int64_t ring_bytes) {
  return segment.bytes().data() + writer * ring_bytes;
}

}  // namespace

int64_t ShmTransport::RingCapacityBytes(int32_t local_ranks) {
  const int64_t share = kSegmentBytesMax / local_ranks;
  return std::min(kRingBytesMax,
                  static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(share))));
}

ShmTransport::~ShmTransport() { FailAll(absl::AbortedError("the transport was closed")); }

absl::Status ShmTransport::Connect(const GroupLayout& layout, Store& store, absl::Time deadline) {
  const int32_t node = layout.node_of(layout.self());
  const int32_t local_ranks = layout.ranks_on(node);
  if (local_ranks > kMaxLocalRanks) {
    return absl::ResourceExhaustedError(absl::StrCat(
        local_ranks, " ranks on one node, shared memory serves at most ", kMaxLocalRanks));
  }
  first_local_rank_ = ToInt(layout.first_rank_of(node));
  self_index_ = ToInt(layout.self()) - first_local_rank_;
  const int64_t capacity_bytes = RingCapacityBytes(local_ranks);
  const int64_t ring_bytes = ShmRingBytes(capacity_bytes);
  const int64_t segment_bytes = ring_bytes * local_ranks;
  COORDD_ASSIGN_OR_RETURN(own_segment_, ShmSegment::Create(segment_bytes));

  ShmHandoverOptions options;
  options.self = layout.self();
  for (int32_t i = 0; i < local_ranks; ++i) {
    if (i != self_index_) options.others.push_back(Rank{first_local_rank_ + i});
  }
  options.segment_fd = own_segment_.fd();
  options.aborted = &aborted_;
  COORDD_ASSIGN_OR_RETURN(std::vector<ShmPeer> found,
                          HandOverSegments(options, store, clock_, deadline));
  own_segment_.CloseFd();
  for (ShmPeer& peer : found) {
    absl::StatusOr<ShmSegment> segment = ShmSegment::Map(std::move(peer.segment), segment_bytes);
    if (!segment.ok()) return PeerLost(peer.rank, segment.status().message());
    const int32_t index = ToInt(peer.rank) - first_local_rank_;
    auto channel =
        std::make_unique<ShmChannel>(peer.rank, RingOf(*segment, self_index_, ring_bytes),
                                     RingOf(own_segment_, index, ring_bytes), capacity_bytes);
    peers_.push_back({peer.rank, *std::move(segment), std::move(peer.socket),
                      std::move(peer.process), std::move(channel)});
  }
  return absl::OkStatus();
}

ShmTransport::Peer& ShmTransport::PeerOf(Rank rank) {
  const int32_t index = ToInt(rank) - first_local_rank_;
  const int32_t position = index < self_index_ ? index : index - 1;
  COORDD_CHECK(index >= 0 && index != self_index_ &&
               position < static_cast<int32_t>(peers_.size()));
  return peers_[static_cast<size_t>(position)];
}

void ShmTransport::Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) {
  PeerOf(to).channel->Send(tag.Encode(), bytes, std::move(done));
}

void ShmTransport::Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) {
  PeerOf(from).channel->Receive(tag.Encode(), bytes, std::move(done));
}

bool ShmTransport::Progress() {
  if (aborted_.load(std::memory_order_acquire))
    return FailAll(absl::AbortedError("the transport was aborted"));
  ShmChannel::Finished finished;
  bool moved = false;
  for (Peer& peer : peers_) moved |= peer.channel->Progress(finished);
  calls_until_check_ -= moved ? 1 : kIdleCallWeight;
  if (calls_until_check_ <= 0) {
    calls_until_check_ = kCallsPerCheck;
    CloseEndedPeers(finished);
  }
  // Last, because a `done` may Send and Receive.
  for (auto& [done, status] : finished) std::move(done)(std::move(status));
  return moved || !finished.empty();
}

void ShmTransport::CloseEndedPeers(ShmChannel::Finished& finished) {
  std::vector<pollfd> watched;
  std::vector<Peer*> owners;
  for (Peer& peer : peers_) {
    if (peer.channel->closed()) continue;
    watched.push_back({peer.socket.get(), POLLIN, 0});
    watched.push_back({peer.process.get(), POLLIN, 0});  // -1 is ignored
    owners.push_back(&peer);
  }
  if (watched.empty() || poll(watched.data(), watched.size(), 0) <= 0) return;
  for (size_t i = 0; i < owners.size(); ++i) {
    // After the handover nobody writes to the socket: whatever there is to read is its end.
    if (watched[2 * i].revents == 0 && watched[2 * i + 1].revents == 0) continue;
    owners[i]->channel->Close(
        PeerLost(owners[i]->rank, "its process has ended or closed its shared memory"), finished);
  }
}

bool ShmTransport::FailAll(const absl::Status& status) {
  ShmChannel::Finished finished;
  for (Peer& peer : peers_) peer.channel->FailAll(status, finished);
  for (auto& [done, ended] : finished) std::move(done)(std::move(ended));
  return !finished.empty();
}

}  // namespace coordd
