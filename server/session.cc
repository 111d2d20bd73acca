#include "server/session.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/tsan_annotations.h"

namespace coordd {
namespace {

// `sequence` as the last field of a message: protocol buffers allow fields in any order.
grpc::Slice SequenceField(int64_t sequence) {
  using google::protobuf::io::CodedOutputStream;
  constexpr uint8_t kTag = v1::CoordinatorMessage::kSequenceFieldNumber << 3;  // wire type: varint
  uint8_t bytes[11] = {kTag};
  const uint8_t* end =
      CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(sequence), bytes + 1);
  return grpc::Slice(bytes, static_cast<size_t>(end - bytes));
}

}  // namespace

Session::Session(SessionId id, grpc::CallbackServerContext* context, Inbox& inbox,
                 ServerMetrics& metrics, std::function<void(SessionId)> on_done)
    : id_(id), on_done_(std::move(on_done)), context_(context), inbox_(inbox), metrics_(metrics) {}

void Session::Begin(std::shared_ptr<Session> self) {
  {
    MutexLock lock(&mu_);
    self_ = std::move(self);
  }
  metrics_.OnSessionOpened();
  ReadNext();
}

bool Session::Send(const grpc::Slice& body) {
  bool taken = true;
  {
    MutexLock lock(&mu_);
    if (close_status_.has_value()) return true;
    if (outbox_.size() < kMaxOutboxMessages && outbox_bytes_ + body.size() <= kMaxOutboxBytes) {
      const grpc::Slice parts[] = {body, SequenceField(++sequence_)};
      outbox_.emplace_back(parts, 2);
      outbox_bytes_ += outbox_.back().Length();
      metrics_.AddOutboxMessages(1);
    } else {
      taken = false;
      close_status_ = absl::ResourceExhaustedError(
          absl::StrCat("the worker has left ", kMaxOutboxMessages, " messages or ",
                       kMaxOutboxBytes >> 20, " MiB unread"));
      // What is queued is of no use to it without the rest.
      DiscardOutboxLocked();
    }
  }
  WriteNext();
  return taken;
}

void Session::DiscardOutboxLocked() {
  metrics_.AddOutboxMessages(-static_cast<int64_t>(outbox_.size()));
  outbox_.clear();
  outbox_bytes_ = 0;
}

void Session::Close(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (close_status_.has_value()) return;
    close_status_ = status;
  }
  WriteNext();
}

void Session::Break() {
  if (!Hold()) return;
  context_->TryCancel();
  LetGo();
}

bool Session::joined() const {
  MutexLock lock(&mu_);
  return joined_;
}

bool Session::closing() const {
  MutexLock lock(&mu_);
  return close_status_.has_value();
}

bool Session::Hold() {
  MutexLock lock(&mu_);
  if (finished_) return false;
  ++holds_;
  return true;
}

void Session::LetGo() {
  {
    MutexLock lock(&mu_);
    --holds_;
  }
  WriteNext();
}

void Session::WriteNext() {
  std::optional<absl::Status> end;
  {
    MutexLock lock(&mu_);
    if (writing_ || finished_) return;
    if (!outbox_.empty()) {
      outgoing_ = std::move(outbox_.front());
      outbox_.pop_front();
      outbox_bytes_ -= outgoing_.Length();
      writing_ = true;
      metrics_.AddOutboxMessages(-1);
    } else if (close_status_.has_value() && holds_ == 0) {
      finished_ = true;
      end = close_status_;
    } else {
      return;
    }
  }
  // From here on another thread may be in OnWriteDone or OnDone: members are not touched any more.
  if (end.has_value()) {
    COORDD_TSAN_RELEASE(&finished_);
    Finish(ToGrpc(*end));
  } else {
    COORDD_TSAN_RELEASE(&outgoing_);
    StartWrite(&outgoing_);
  }
}

void Session::OnWriteDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&outgoing_);
  {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) DiscardOutboxLocked();  // the stream is broken; OnReadDone tells the coordinator
  }
  if (ok) metrics_.OnMessageSent();
  WriteNext();
}

void Session::ReadNext() {
  if (closing() || !Hold()) return;
  COORDD_TSAN_RELEASE(&incoming_);
  StartRead(&incoming_);
  LetGo();
}

void Session::OnReadDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&incoming_);
  if (ok) {
    Take();
  } else {
    // A broken connection needs no words beyond those that the state finds for every loss.
    Ended(context_->IsCancelled() ? "" : "it closed its side of the stream");
  }
}

void Session::Take() {
  SessionMessage in{.session = id_, .message = {}};
  bool parsed = false;
  {
    grpc::ProtoBufferReader reader(&incoming_);
    parsed = reader.status().ok() && in.message.ParseFromZeroCopyStream(&reader);
  }
  incoming_.Clear();
  if (!parsed) {
    metrics_.OnSessionDropped(ServerMetrics::Drop::kNotParsable);
    Close(absl::InvalidArgumentError(
        "what was sent cannot be parsed as a message coordd.v1.WorkerMessage"));
    return;
  }
  metrics_.OnMessageReceived();
  {
    MutexLock lock(&mu_);
    joined_ = true;
  }
  held_ = Inbound(std::move(in));
  OfferHeld();
}

void Session::OfferHeld() {
  // Held, so that the end of the session cannot be reported before this message.
  if (!Hold()) return;
  const bool taken = inbox_.Offer(*std::move(held_));
  LetGo();
  if (taken) {
    held_.reset();
    ReadNext();
    return;
  }
  // Full: nothing more is read from this worker, so HTTP/2 flow control holds it back.
  std::shared_ptr<Session> self;
  {
    MutexLock lock(&mu_);
    self = self_;
  }
  if (self == nullptr) return;  // gRPC is done with it
  metrics_.OnReadWithheld();
  auto resume = [self] {
    if (!self->closing()) self->OfferHeld();
  };
  if (!inbox_.WaitForRoom(std::move(resume))) Close(absl::UnavailableError("coordd is stopping"));
}

void Session::Ended(const std::string& detail) {
  bool report = false;
  {
    MutexLock lock(&mu_);
    report = joined_ && !std::exchange(end_reported_, true);
  }
  // The coordinator closes the session once the state has seen this, with what the state decided
  // before.
  if (report && inbox_.Push(Inbound(SessionEnded{id_, detail}))) return;
  Close(absl::OkStatus());
}

void Session::OnDone() {
  COORDD_TSAN_ACQUIRE(&finished_);
  bool report = false;
  std::shared_ptr<Session> self;
  {
    MutexLock lock(&mu_);
    finished_ = true;
    report = joined_ && !std::exchange(end_reported_, true);
    self = std::move(self_);
  }
  if (report) inbox_.Push(Inbound(SessionEnded{id_, "coordd closed the stream"}));
  metrics_.OnSessionEnded();
  on_done_(id_);
  COORDD_TSAN_RELEASE(&metrics_);  // the server's Shutdown waits for this callback
  // `self` goes last; whoever else still holds this finds it finished.
}

}  // namespace coordd
