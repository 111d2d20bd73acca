#include "worker/transport/tcp/message_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "worker/base/copy_bytes.h"

namespace coordd {
namespace {

// After how much more was taken the peer is told, in a frame of its own.
constexpr uint64_t kTellAfterBytes = MessageLink::kUnprovenBytesMax / 4;

absl::Status Unexpected(absl::string_view what, const FrameHeader& header) {
  return absl::InvalidArgumentError(absl::StrCat(what, " with tag ", header.tag, " and ",
                                                 header.size_bytes,
                                                 " bytes, which nothing here is waiting for"));
}

}  // namespace

MessageLink::~MessageLink() {
  End(absl::AbortedError("the transport was closed"));
  table_.TakeKept([this](KeptSmall& kept) { memory_.GiveBack(kept); });
}

void MessageLink::Finish(TcpOperation& operation, absl::Status status) {
  --pending_;
  ++finished_;
  memory_.End(operation, std::move(status));
}

absl::Status MessageLink::SizeStatus(uint64_t size_bytes, uint64_t expected_bytes) const {
  if (size_bytes == expected_bytes) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("message from rank ", ToInt(peer_), " has ", size_bytes,
                                          " bytes, expected ", expected_bytes));
}

void MessageLink::Send(TcpOperation& operation) {
  ++pending_;
  if (!ended_.ok()) return Finish(operation, ended_);
  if (IsSmall(operation.size_bytes)) {
    if (!is_holding() && SendSmall(operation)) return;
    memory_.CountHeld(1);
    return held_.Push(operation);
  }
  const FrameHeader header{FrameKind::kData, operation.tag, operation.size_bytes};
  EarlyReady* const early = table_.Take(operation.tag, &TagQueues::early);
  if (early == nullptr) return table_.Of(operation.tag).large_sends.Push(operation);
  --early_;
  const size_t expected_bytes = early->size_bytes;
  memory_.readies().GiveBack(*early);
  if (expected_bytes == operation.size_bytes) return outbox_.Push(header, operation);
  outbox_.Push({FrameKind::kOtherSize, header.tag, header.size_bytes});
  Finish(operation, SizeStatus(operation.size_bytes, expected_bytes));
}

// Unless the peer might have to keep too much.
bool MessageLink::SendSmall(TcpOperation& operation) {
  const uint64_t cost = CostOf(operation.size_bytes);
  if (sent_cost_ - proven_cost_ + cost > kUnprovenBytesMax) return false;
  sent_cost_ += cost;
  outbox_.Push({FrameKind::kSmall, operation.tag, operation.size_bytes}, operation);
  return true;
}

TcpOperation* MessageLink::TakeHeld() {
  TcpOperation* const held = held_.Pop();
  if (held != nullptr) memory_.CountHeld(-1);
  return held;
}

void MessageLink::AskForHeld() {
  while (TcpOperation* const held = TakeHeld()) {
    outbox_.Push({FrameKind::kAsk, held->tag, held->size_bytes});
    table_.Of(held->tag).asking_sends.Push(*held);
  }
}

void MessageLink::Receive(TcpOperation& operation) {
  ++pending_;
  if (IsSmall(operation.size_bytes)) {
    // What a lost peer has sent before its end is received.
    KeptSmall* const kept = table_.Take(operation.tag, &TagQueues::kept);
    if (kept != nullptr) return ReceiveKept(operation, *kept);
    if (!ended_.ok()) return Finish(operation, ended_);
    roomy_ += IsRoomy(operation.size_bytes) ? 1 : 0;
    return table_.Of(operation.tag).small.Push(operation);
  }
  if (!ended_.ok()) return Finish(operation, ended_);
  table_.Of(operation.tag).large.Push(operation);
  Announce(operation);
}

TcpOperation* MessageLink::TakeSmall(uint64_t tag) {
  TcpOperation* const receive = table_.Take(tag, &TagQueues::small);
  if (receive != nullptr && IsRoomy(receive->size_bytes)) --roomy_;
  return receive;
}

void MessageLink::Announce(TcpOperation& operation) {
  ++announced_;
  outbox_.PushUrgent({FrameKind::kReady, operation.tag, operation.size_bytes});
}

void MessageLink::ReceiveKept(TcpOperation& operation, KeptSmall& kept) {
  const size_t size_bytes = kept.size_bytes;
  absl::Status status = SizeStatus(size_bytes, operation.size_bytes);
  if (kept.is_with_sender) {
    memory_.GiveBack(kept);
    --early_;
    if (!ended_.ok()) return Finish(operation, ended_);
    if (status.ok()) {
      table_.Of(operation.tag).asked.Push(operation);
      return Announce(operation);
    }
    outbox_.PushUrgent({FrameKind::kRefused, operation.tag, operation.size_bytes});
    return Finish(operation, std::move(status));
  }
  kept_cost_ -= CostOf(size_bytes);
  if (&kept == keeping_ && status.ok()) {
    kept.receive = &operation;  // which ends with the payload
    return;
  }
  if (status.ok())
    CopyBytes(operation.landing, kept.bytes.data(), static_cast<int64_t>(size_bytes));
  // Its memory is still written to where it is coming.
  if (&kept != keeping_) {
    memory_.GiveBack(kept);
    Taken(size_bytes);
  } else {
    kept.is_whole = true;  // nobody's any more
  }
  Finish(operation, std::move(status));
}

void MessageLink::Taken(uint64_t size_bytes) {
  taken_cost_ += CostOf(size_bytes);
  if (taken_cost_ - told_cost_ < kTellAfterBytes || !ended_.ok()) return;
  told_cost_ = taken_cost_;
  outbox_.PushUrgent({FrameKind::kTaken, 0, taken_cost_});
}

void MessageLink::Wrote(size_t bytes, bool has_left) {
  outbox_.Wrote(bytes, [this](TcpOperation& written) { written_.Push(written); });
  if (!has_left) return;
  while (TcpOperation* const sent = written_.Pop()) Finish(*sent, absl::OkStatus());
}

void MessageLink::End(const absl::Status& status) {
  if (!ended_.ok()) return;
  ended_ = status;
  auto end = [this](TcpOperation& operation) { Finish(operation, ended_); };
  outbox_.Drop(end);
  while (TcpOperation* const written = written_.Pop()) end(*written);
  while (TcpOperation* const held = TakeHeld()) end(*held);
  if (receiving_ != nullptr) end(*std::exchange(receiving_, nullptr));
  if (KeptSmall* const kept = std::exchange(keeping_, nullptr); kept != nullptr) {
    // The rest of it does not come: who receives it ends as with one that its sender still has.
    if (kept->receive != nullptr) end(*kept->receive);
    const bool is_in_table = kept->receive == nullptr && !kept->is_whole;
    kept->is_with_sender = true;
    if (!is_in_table) memory_.GiveBack(*kept);
  }
  table_.TakeOperations(end, [this](EarlyReady& early) { memory_.readies().GiveBack(early); });
  announced_ = roomy_ = early_ = 0;
}

absl::StatusOr<std::byte*> MessageLink::BeginFrame(const FrameHeader& header) {
  absl::Status status;
  switch (header.kind) {
    case FrameKind::kSmall:
      return BeginSmall(header);
    case FrameKind::kData:
      return BeginData(header);
    case FrameKind::kAsk:
      status = HearAsk(header);
      break;
    case FrameKind::kReady:
      status = HearReady(header);
      break;
    case FrameKind::kTaken:
      status = HearTaken(header);
      break;
    case FrameKind::kOtherSize:
      status = HearOtherSize(header);
      break;
    case FrameKind::kRefused:
      status = HearRefused(header);
      break;
    case FrameKind::kWelcome:
    case FrameKind::kYield:
      status = Unexpected("a second greeting", header);
      break;
  }
  if (!status.ok()) return status;
  return nullptr;
}

absl::StatusOr<std::byte*> MessageLink::BeginSmall(const FrameHeader& header) {
  if (TcpOperation* const receive = TakeSmall(header.tag)) {
    absl::Status status = SizeStatus(header.size_bytes, receive->size_bytes);
    if (!status.ok()) {
      // It has to go somewhere: who reads the connection needs a place for every payload.
      keeping_ = &memory_.NewKept(static_cast<size_t>(header.size_bytes), /*is_with_sender=*/false);
      keeping_->is_whole = true;  // nobody's
      Finish(*receive, std::move(status));
      return keeping_->bytes.data();
    }
    receiving_ = receive;
    Taken(header.size_bytes);
    return receive->landing;
  }
  if (kept_cost_ + CostOf(header.size_bytes) > kUnprovenBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "more than ", kUnprovenBytesMax, " bytes of messages that nobody has received yet"));
  }
  kept_cost_ += CostOf(header.size_bytes);
  keeping_ = &memory_.NewKept(static_cast<size_t>(header.size_bytes), /*is_with_sender=*/false);
  table_.Of(header.tag).kept.Push(*keeping_);
  return keeping_->bytes.data();
}

absl::StatusOr<std::byte*> MessageLink::BeginData(const FrameHeader& header) {
  auto TagQueues::*const queue = IsSmall(header.size_bytes) ? &TagQueues::asked : &TagQueues::large;
  const TcpOperation* const first = table_.First(header.tag, queue);
  if (first == nullptr || first->size_bytes != header.size_bytes)
    return Unexpected("a message", header);
  receiving_ = table_.Take(header.tag, queue);
  --announced_;
  return receiving_->landing;
}

void MessageLink::EndPayload() {
  if (receiving_ != nullptr) return Finish(*std::exchange(receiving_, nullptr), absl::OkStatus());
  KeptSmall* const kept = std::exchange(keeping_, nullptr);
  if (kept == nullptr) return;  // it was dropped
  if (kept->receive == nullptr && !kept->is_whole) {
    kept->is_whole = true;
    return;
  }
  if (TcpOperation* const receive = kept->receive; receive != nullptr) {
    CopyBytes(receive->landing, kept->bytes.data(), static_cast<int64_t>(kept->size_bytes));
    Finish(*receive, absl::OkStatus());
  }
  const size_t size_bytes = kept->size_bytes;
  memory_.GiveBack(*kept);
  Taken(size_bytes);
}

absl::Status MessageLink::HearAsk(const FrameHeader& header) {
  TcpOperation* const receive = TakeSmall(header.tag);
  if (receive == nullptr) {
    if (++early_ > kEarlyMax) return absl::ResourceExhaustedError("too many questions");
    KeptSmall& kept =
        memory_.NewKept(static_cast<size_t>(header.size_bytes), /*is_with_sender=*/true);
    table_.Of(header.tag).kept.Push(kept);
    return absl::OkStatus();
  }
  absl::Status status = SizeStatus(header.size_bytes, receive->size_bytes);
  if (status.ok()) {
    table_.Of(header.tag).asked.Push(*receive);
    Announce(*receive);
  } else {
    outbox_.PushUrgent({FrameKind::kRefused, header.tag, receive->size_bytes});
    Finish(*receive, std::move(status));
  }
  return absl::OkStatus();
}

absl::Status MessageLink::HearReady(const FrameHeader& header) {
  if (IsSmall(header.size_bytes)) {
    const TcpOperation* const first = table_.First(header.tag, &TagQueues::asking_sends);
    if (first == nullptr || first->size_bytes != header.size_bytes)
      return Unexpected("a request for a message", header);
    TcpOperation* const send = table_.Take(header.tag, &TagQueues::asking_sends);
    outbox_.Push({FrameKind::kData, header.tag, header.size_bytes}, *send);
    return absl::OkStatus();
  }
  TcpOperation* const send = table_.Take(header.tag, &TagQueues::large_sends);
  if (send == nullptr) {
    if (++early_ > kEarlyMax) return absl::ResourceExhaustedError("too many receives");
    EarlyReady& early = memory_.readies().New();
    early.size_bytes = static_cast<size_t>(header.size_bytes);
    table_.Of(header.tag).early.Push(early);
  } else if (send->size_bytes == header.size_bytes) {
    outbox_.Push({FrameKind::kData, header.tag, header.size_bytes}, *send);
  } else {
    outbox_.Push({FrameKind::kOtherSize, header.tag, send->size_bytes});
    Finish(*send, SizeStatus(send->size_bytes, header.size_bytes));
  }
  return absl::OkStatus();
}

absl::Status MessageLink::HearTaken(const FrameHeader& header) {
  if (header.size_bytes > sent_cost_ || header.size_bytes < proven_cost_)
    return Unexpected("an account of what was taken", header);
  proven_cost_ = header.size_bytes;
  while (is_holding() && SendSmall(*held_.first())) TakeHeld();
  return absl::OkStatus();
}

absl::Status MessageLink::HearOtherSize(const FrameHeader& header) {
  TcpOperation* const receive = table_.Take(header.tag, &TagQueues::large);
  if (receive == nullptr) return Unexpected("a message of another size", header);
  --announced_;
  Finish(*receive, absl::InternalError(absl::StrCat("message from rank ", ToInt(peer_), " has ",
                                                    Counted(header.size_bytes, "byte"),
                                                    ", expected ", receive->size_bytes)));
  return absl::OkStatus();
}

absl::Status MessageLink::HearRefused(const FrameHeader& header) {
  TcpOperation* const send = table_.Take(header.tag, &TagQueues::asking_sends);
  if (send == nullptr) return Unexpected("a refusal of a message", header);
  Finish(*send, absl::InternalError(absl::StrCat("message to rank ", ToInt(peer_), " has ",
                                                 Counted(send->size_bytes, "byte"), ", expected ",
                                                 header.size_bytes)));
  return absl::OkStatus();
}

}  // namespace coordd
