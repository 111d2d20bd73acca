// The messages between this rank and one peer that go over one connection, whatever that is. PURE.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/types.h"
#include "worker/transport/tcp/frame_reader.h"
#include "worker/transport/tcp/message_table.h"
#include "worker/transport/tcp/outbox.h"
#include "worker/transport/tcp/tcp_operation.h"

namespace coordd {

// A small message is sent at once, as long as the peer does not have to keep more than
// kUnprovenBytesMax; beyond that it is held until the peer has taken more. What it keeps may have
// to wait for what is held: so its owner says after a while that this is to be asked for. A large
// one is sent when the peer says that its receive is there, and so is read to where it belongs; who
// receives says that at once, so that no round trip is lost where the receive comes first. What the
// peer says is checked against what was said to it, and against the bounds.
//
// Operations may be begun before there is a connection. One thread uses it.
class MessageLink final : public FrameSink {
 public:
  // What the peer may have to keep of this rank's: sizes, and this much more for each message.
  static constexpr uint64_t kUnprovenBytesMax = uint64_t{4} << 20;
  static constexpr uint64_t kMessageCost = 64;
  // Of a message of so much it is cheaper to read all at once, beside its header, and to copy it,
  // than to read the header first and the rest to where it belongs: a call for each, and what has
  // arrived is acknowledged twice.
  static constexpr uint64_t kAsideBytesMax = uint64_t{64} << 10;
  // The receives, or questions, of a peer that are known here before what they are for.
  static constexpr int64_t kEarlyMax = int64_t{1} << 17;

  // `memory` outlives it.
  MessageLink(Rank peer, LinkMemory& memory) : peer_(peer), memory_(memory) {}
  ~MessageLink() override;
  MessageLink(const MessageLink&) = delete;
  MessageLink& operator=(const MessageLink&) = delete;

  void Send(TcpOperation& operation);
  void Receive(TcpOperation& operation);
  // Whether small messages wait for the peer to take others.
  bool is_holding() const { return !held_.empty(); }
  // It may wait for one of these: it is asked for each.
  void AskForHeld();
  // How much of this rank's small messages the peer does not keep any more.
  uint64_t proven_cost() const { return proven_cost_; }
  // Ends all that is pending, and all that comes later, but for receives of what has come before.
  // Nothing is read from or written to memory of operations any more.
  void End(const absl::Status& status);
  const absl::Status& ended() const { return ended_; }

  // What is to be sent.
  Outbox& outbox() { return outbox_; }
  // After some of it was written; `has_left`: and all that was written ever has left this process,
  // which is when sends end.
  void Wrote(size_t bytes, bool has_left);
  FrameReader& reader() { return reader_; }
  // Whether the next payload that comes may be one that is worth being read to where it belongs.
  bool expects_much() const { return announced_ > 0 || roomy_ > 0; }
  // Operations under way.
  int64_t pending() const { return pending_; }
  // Operations that have ended.
  int64_t finished() const { return finished_; }

  absl::StatusOr<std::byte*> BeginFrame(const FrameHeader& header) override;
  void EndPayload() override;

 private:
  static bool IsSmall(uint64_t size_bytes) { return size_bytes <= kSmallBytesMax; }
  static bool IsRoomy(uint64_t size_bytes) { return size_bytes > kAsideBytesMax; }
  TcpOperation* TakeSmall(uint64_t tag);
  bool SendSmall(TcpOperation& operation);
  TcpOperation* TakeHeld();
  static uint64_t CostOf(uint64_t size_bytes) { return size_bytes + kMessageCost; }
  void Finish(TcpOperation& operation, absl::Status status);
  void Announce(TcpOperation& operation);
  void ReceiveKept(TcpOperation& operation, KeptSmall& kept);
  void Taken(uint64_t size_bytes);
  absl::Status SizeStatus(uint64_t size_bytes, uint64_t expected_bytes) const;
  absl::StatusOr<std::byte*> BeginSmall(const FrameHeader& header);
  absl::StatusOr<std::byte*> BeginData(const FrameHeader& header);
  absl::Status HearAsk(const FrameHeader& header);
  absl::Status HearReady(const FrameHeader& header);
  absl::Status HearTaken(const FrameHeader& header);
  absl::Status HearOtherSize(const FrameHeader& header);
  absl::Status HearRefused(const FrameHeader& header);

  // Constant after construction.
  const Rank peer_;
  LinkMemory& memory_;

  // Touched by the owner's thread.
  absl::Status ended_;
  MessageTable table_;
  Outbox outbox_;
  NodeQueue<TcpOperation> written_;  // sends that have not left yet
  NodeQueue<TcpOperation> held_;
  FrameReader reader_{*this};
  TcpOperation* receiving_ = nullptr;        // whose payload is coming; nullptr: nobody's,
  KeptSmall* keeping_ = nullptr;             // or this one's
  uint64_t sent_cost_ = 0;                   // of small messages of this rank's,
  uint64_t proven_cost_ = 0;                 // and how much of it the peer does not keep
  uint64_t taken_cost_ = 0, told_cost_ = 0;  // the same of the peer's, and what it was told
  uint64_t kept_cost_ = 0;
  int64_t announced_ = 0;  // receives that the peer knows of
  int64_t roomy_ = 0;      // those for small messages of more than kAsideBytesMax
  int64_t early_ = 0;      // of the peer's receives and questions
  int64_t pending_ = 0, finished_ = 0;
};

}  // namespace coordd
