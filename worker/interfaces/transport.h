// Point-to-point bytes between the ranks of one generation: the lower seam of the data plane.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/protocol/store.h"
#include "common/protocol/types.h"
#include "worker/interfaces/group_layout.h"
#include "worker/interfaces/lanes.h"

namespace coordd {

// Names a message between two ranks: lane modulo kLaneNumbers, 2^20 | part of the batch, modulo 4 |
// sequence of the batch on its lane, modulo 2^18. Fits 40 bits, so that UCX tags have 24 left for
// the sender's rank. Lane and sequence may wrap: two batches are under way between two ranks at one
// time only while both have their tensors pending, of which there are no more (kMaxPendingTensors).
struct Tag {
  static constexpr int32_t kParts = 4;

  LaneId lane;
  int64_t sequence = 0;
  int64_t part = 0;     // of a batch whose parts are under way beside each other
  int64_t segment = 0;  // not encoded: of a transfer that is cut into several messages

  uint64_t Encode() const {
    constexpr uint64_t kLanes = kLaneNumbers, kSequences = uint64_t{1} << 18;
    const uint64_t in_lane = static_cast<uint64_t>(part) % kParts * kSequences +
                             static_cast<uint64_t>(sequence) % kSequences;
    return (static_cast<uint64_t>(ToInt(lane)) % kLanes) << 20 | in_lane;
  }
};

// One object per generation: a new generation has new addresses and new memory, so that nothing
// late from the old one can arrive. One thread at a time owns it, not always the same; only
// Abort may be called from any thread.
// InProcess, Shm, Tcp, Ucx; Routed, which picks between two of them by node, and Agreed, which does
// by what both ranks have.
class Transport {
 public:
  using Done = absl::AnyInvocable<void(absl::Status) &&>;

  virtual ~Transport() =
      default;  // pending operations are dropped: their `done` is called with ABORTED
  virtual absl::string_view name() const = 0;

  // Publishes this rank's address in `store` (a generation's prefix) and gets ready to reach the
  // others; peers may be connected lazily. DEADLINE_EXCEEDED: names the ranks that did not show up.
  // UNAVAILABLE: what could not be opened.
  virtual absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) = 0;

  // `bytes` stays valid and (for Send) unchanged until `done`, which is called once, from
  // Progress() or from the destructor, never from Send or Receive themselves. Messages from one
  // rank to another with one tag arrive in the order of their Sends and match Receives in the order
  // of these; sizes, parts and segments of matching calls are equal: a transport may send parts and
  // segments beside each other, so long as they match as if they came in order. Statuses:
  // UNAVAILABLE with PeerLost (peer_status.h) when the peer is gone; ABORTED after Abort; INTERNAL.
  virtual void Send(Rank to, Tag tag, absl::Span<const std::byte> bytes, Done done) = 0;
  virtual void Receive(Rank from, Tag tag, absl::Span<std::byte> bytes, Done done) = 0;

  // As Receive, but the bytes may stay where they have arrived: `taken` gets where they are, which
  // is `landing` or memory of the transport's that holds them until `taken` returns. Aligned to
  // kInPlaceAlignment bytes, if `landing` is. `taken` must not call the transport.
  using Taken = absl::AnyInvocable<void(absl::StatusOr<const std::byte*>) &&>;
  static constexpr size_t kInPlaceAlignment = 16;
  virtual void ReceiveInPlace(Rank from, Tag tag, absl::Span<std::byte> landing, Taken taken) = 0;

  // Moves what can be moved without waiting; returns whether anything happened.
  virtual bool Progress() = 0;

  // Told when Progress is about not to be called for a while: the next one looks whether a peer has
  // gone.
  virtual void LookAtPeers() {}

  // A descriptor of the system's that can be read as long as Progress has something to do that has
  // come from outside; -1: there is none, or not now, and Progress is to be polled. Progress is to
  // be called every IdleWait::kBellNanosecondsMax all the same.
  virtual int Descriptor() { return -1; }

  // Thread-safe, idempotent: from the next Progress on, everything pending and everything new ends
  // with ABORTED.
  virtual void Abort() = 0;
};

// What a Receive into `landing` calls for `taken`, in a transport that copies what it receives.
Transport::Done TakenFrom(absl::Span<const std::byte> landing, Transport::Taken taken);

}  // namespace coordd
