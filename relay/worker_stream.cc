#include "relay/worker_stream.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/grpc_status.h"
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

void WorkerStream::Begin(std::shared_ptr<WorkerStream> self, std::shared_ptr<NodeStream> to) {
  to_ = std::move(to);
  {
    MutexLock lock(&mu_);
    self_ = std::move(self);
  }
  ReadNext();
}

void WorkerStream::Send(grpc::ByteBuffer message) {
  {
    MutexLock lock(&mu_);
    if (close_status_.has_value()) return;
    if (outbox_.size() < kMaxOutboxMessages &&
        outbox_bytes_ + message.Length() <= kMaxOutboxBytes) {
      outbox_bytes_ += message.Length();
      outbox_.push_back(std::move(message));
    } else {
      close_status_ = absl::ResourceExhaustedError(
          absl::StrCat("the worker has left ", kMaxOutboxMessages, " messages or ",
                       kMaxOutboxBytes >> 20, " MiB unread"));
      outbox_.clear();  // of no use to it without the rest
    }
  }
  WriteNext();
}

void WorkerStream::Close(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (close_status_.has_value()) return;
    close_status_ = status;
  }
  WriteNext();
}

bool WorkerStream::Hold() {
  MutexLock lock(&mu_);
  if (finished_) return false;
  ++holds_;
  return true;
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
  {
    MutexLock lock(&mu_);
    if (writing_ || finished_) return;
    if (!outbox_.empty()) {
      outgoing_ = std::move(outbox_.front());
      outbox_.pop_front();
      outbox_bytes_ -= outgoing_.Length();
      writing_ = true;
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

void WorkerStream::OnWriteDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&outgoing_);
  {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) outbox_.clear();  // the stream is broken; OnReadDone tells
  }
  WriteNext();
}

void WorkerStream::ReadNext() {
  if (!Hold()) return;
  COORDD_TSAN_RELEASE(&incoming_);
  StartRead(&incoming_);
  LetGo();
}

void WorkerStream::OnReadDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&incoming_);
  if (!ok) {
    TellEnd();
    Close(absl::OkStatus());
    return;
  }
  std::string message = BytesOf(incoming_);
  incoming_.Clear();
  if (to_ == nullptr) return;
  if (to_->Said(id_, std::move(message))) ReadNext();
}

void WorkerStream::TellEnd() {
  {
    MutexLock lock(&mu_);
    if (std::exchange(end_told_, true)) return;
  }
  if (to_ != nullptr) to_->Ended(id_);
}

void WorkerStream::OnDone() {
  COORDD_TSAN_ACQUIRE(&finished_);
  TellEnd();
  std::shared_ptr<WorkerStream> self;
  {
    MutexLock lock(&mu_);
    finished_ = true;
    self = std::move(self_);
  }
  COORDD_TSAN_RELEASE(this);  // the server's Shutdown waits for this callback
}

}  // namespace coordd
