#include "relay/worker_stream.h"

#include <grpc/grpc.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/log.h"
#include "common/base/tsan_annotations.h"
#include "common/base/utf8.h"
#include "common/grpc/grpc_status.h"
#include "common/protocol/protocol_bounds.h"
#include "coordd/v1/session.pb.h"
#include "relay/node_stream.h"

namespace coordd {
namespace {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return "";
  std::string bytes;
  bytes.reserve(buffer.Length());
  for (const grpc::Slice& slice : slices)
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

}  // namespace

WorkerStream::WorkerStream(StreamId id, grpc::CallbackServerContext* context,
                           std::shared_ptr<void> place, const WorkerPatience& patience,
                           Clock& clock)
    : place_(std::move(place)),
      id_(id),
      patience_(patience),
      clock_(clock),
      call_(context->c_call()) {}

void WorkerStream::Begin(std::shared_ptr<WorkerStream> self, std::shared_ptr<NodeStream> to) {
  to_ = std::move(to);
  {
    MutexLock lock(&mu_);
    self_ = std::move(self);
  }
  ReadNext();
}

void WorkerStream::Send(grpc::ByteBuffer message) {
  std::string why;
  {
    MutexLock lock(&mu_);
    if (closing_.has_value()) return;
    if (outbox_.size() < kMaxOutboxMessages &&
        outbox_bytes_ + message.Length() <= kMaxOutboxBytes) {
      outbox_bytes_ += message.Length();
      outbox_.push_back(std::move(message));
    } else {
      why = absl::StrCat("it has left ", DiscardOutboxLocked(), " unread, and more was to come");
    }
  }
  if (!why.empty()) return GiveUpOn(why);
  WriteNext();
}

std::string WorkerStream::DiscardOutboxLocked() {
  std::string unread = absl::StrCat(Counted(static_cast<int64_t>(outbox_.size()), "message"),
                                    " of ", Counted(static_cast<int64_t>(outbox_bytes_), "byte"));
  outbox_.clear();
  outbox_bytes_ = 0;
  return unread;
}

void WorkerStream::GiveUpOn(const std::string& why) {
  std::string name;
  {
    MutexLock lock(&mu_);
    name = name_.empty() ? "a worker that has not said who it is" : name_;
  }
  COORDD_LOG(kWarning, "the session of ", name, " was ended: ", why);
  Close(absl::ResourceExhaustedError(
      absl::StrCat("the relay of this node has ended the session of ", name, ": ", why)));
  TellEnd(why);
}

void WorkerStream::Close(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (closing_.has_value()) return;
    closing_ = Closing{status, clock_.Now()};
  }
  WriteNext();
}

void WorkerStream::Look(absl::Time now) {
  std::string why;
  {
    MutexLock lock(&mu_);
    if (!closing_.has_value() && writing_.has_value() &&
        now - writing_->since >= patience_.ForMessage(writing_->bytes)) {
      why = absl::StrCat("it has taken nothing for ", absl::FormatDuration(now - writing_->since),
                         ", or too little, of a message of ", writing_->bytes,
                         " bytes, and has left ", DiscardOutboxLocked(), " unread behind it");
    }
  }
  if (!why.empty()) GiveUpOn(why);
  grpc_call* call = nullptr;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    const bool is_over =
        closing_.has_value() && (!why.empty() || now - closing_->since >= patience_.closes);
    if (!is_over || call_ == nullptr) return;
    status = closing_->status;
    // gRPC may call back from within, and may be done with it by then.
    call = call_;
    grpc_call_ref(call);
  }
  const auto code = static_cast<grpc_status_code>(status.raw_code());
  grpc_call_cancel_with_status(call, status.ok() ? GRPC_STATUS_CANCELLED : code,
                               std::string(status.message()).c_str(), nullptr);
  grpc_call_unref(call);
}

void WorkerStream::LetGo() {
  {
    MutexLock lock(&mu_);
    --holds_;
  }
  WriteNext();
}

void WorkerStream::WriteNext() {
  std::optional<absl::Status> end;
  const absl::Time now = clock_.Now();
  {
    MutexLock lock(&mu_);
    if (writing_.has_value() || finished_) return;
    if (!outbox_.empty()) {
      outgoing_ = std::move(outbox_.front());
      outbox_.pop_front();
      outbox_bytes_ -= outgoing_.Length();
      writing_ = Writing{now, outgoing_.Length()};
    } else if (closing_.has_value() && holds_ == 0) {
      finished_ = true;
      end = closing_->status;
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

void WorkerStream::OnWriteDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&outgoing_);
  bool reads = false;
  {
    MutexLock lock(&mu_);
    writing_.reset();
    if (!ok) DiscardOutboxLocked();  // the stream is broken; OnReadDone tells
    reads = !closing_.has_value() && !IsLongLocked() && std::exchange(reads_later_, false);
  }
  if (reads) ReadNext();
  WriteNext();
}

void WorkerStream::ReadNext() {
  {
    MutexLock lock(&mu_);
    if (finished_ || closing_.has_value()) return;
    // Of what it is answered nothing is lost, if it reads: but it is answered no faster than that.
    reads_later_ = IsLongLocked();
    if (reads_later_) return;
    ++holds_;
  }
  COORDD_TSAN_RELEASE(&incoming_);
  StartRead(&incoming_);
  LetGo();
}

void WorkerStream::OnReadDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&incoming_);
  if (!ok) {
    TellEnd("");
    Close(absl::OkStatus());
    return;
  }
  std::string message = BytesOf(incoming_);
  incoming_.Clear();
  if (to_ == nullptr) return;
  ReadName(message);
  if (to_->Said(id_, std::move(message))) ReadNext();
}

// What it says first, if that is right; coordd answers it.
void WorkerStream::ReadName(const std::string& message) {
  {
    MutexLock lock(&mu_);
    if (!name_.empty()) return;
  }
  v1::WorkerMessage first;
  std::string name = "a worker";
  if (first.ParseFromString(message) && first.has_join()) {
    name = absl::StrCat("worker ", ShortenedText(first.join().worker_id(), kMaxWorkerIdBytes),
                        " (process ", first.join().pid(), ")");
  }
  MutexLock lock(&mu_);
  name_ = std::move(name);
}

void WorkerStream::TellEnd(absl::string_view detail) {
  {
    MutexLock lock(&mu_);
    if (std::exchange(end_told_, true)) return;
  }
  if (to_ != nullptr) to_->Ended(id_, detail);
}

void WorkerStream::OnDone() {
  COORDD_TSAN_ACQUIRE(&finished_);
  TellEnd("");
  std::shared_ptr<WorkerStream> self;
  {
    MutexLock lock(&mu_);
    finished_ = true;
    call_ = nullptr;
    self = std::move(self_);
  }
  COORDD_TSAN_RELEASE(this);  // the server's Shutdown waits for this callback
}

}  // namespace coordd
