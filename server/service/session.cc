#include "server/service/session.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/grpc_status.h"
#include "common/protocol/message_sequence.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Of a relay each of its members may leave something.
OutboxBounds BoundsOf(Session::Kind kind) {
  OutboxBounds bounds;
  if (kind == Session::Kind::kNode) {
    bounds.messages = 1 << 16;
    bounds.together_bytes = 1 << 20;
  }
  return bounds;
}

// What Session::NewBody counts by itself.
size_t CountedOf(const grpc::Slice& body) {
  return body.size() > Session::kCopiedBytes ? body.size() : 0;
}

}  // namespace

Session::Session(Kind kind, SessionId id, Stream stream, Inbox& inbox, ServerMetrics& metrics,
                 Calls calls)
    : kind_(kind),
      id_(id),
      calls_(std::move(calls)),
      stream_(std::move(stream)),
      inbox_(inbox),
      metrics_(metrics),
      outbox_(BoundsOf(kind), stream_.unread),
      members_(ToInt(id)) {}

void Session::Begin(std::shared_ptr<Session> self) {
  {
    MutexLock lock(&mu_);
    self_ = std::move(self);
  }
  if (kind_ == Kind::kNode) {
    metrics_.AddNodeSessions(1);
  } else {
    metrics_.AddSessions(1);
  }
  ReadNext();
}

grpc::Slice Session::NewBody(size_t bytes) const {
  // A small one is copied for each of those who get it.
  return bytes > kCopiedBytes && stream_.unread != nullptr ? stream_.unread->NewSlice(bytes)
                                                           : grpc::Slice(bytes);
}

void Session::Send(const grpc::Slice& body) {
  bool taken = true, begins = false;
  {
    MutexLock lock(&mu_);
    if (close_status_.has_value()) return;
    const grpc::Slice parts[] = {body, grpc::Slice(SequenceField(sequence_ + 1))};
    begins = output_ == Output::kIdle && outbox_.empty();
    taken = QueueLocked(grpc::ByteBuffer(parts, 2), CountedOf(body));
    if (taken) ++sequence_;
    begins = begins && taken;
    if (begins) {
      outgoing_ = outbox_.Take();
      output_ = Output::kWriting;
    }
  }
  if (!taken) calls_.full(*this);
  // From here on another thread may be in OnWriteDone: members are not touched any more.
  if (begins) {
    COORDD_TSAN_RELEASE(&outgoing_);
    StartWrite(&outgoing_);
  } else {
    WriteNext();
  }
}

Session::Framed Session::FrameFor(const MemberRuns& members, const grpc::Slice& message) {
  using google::protobuf::io::CodedOutputStream;
  constexpr uint32_t kBytes = 2;  // wire type: length and that many bytes
  constexpr uint32_t kReply = v1::NodeReplies::kRepliesFieldNumber << 3 | kBytes;
  constexpr uint32_t kMessage = v1::NodeReply::kMessageFieldNumber << 3 | kBytes;
  v1::NodeReply reply;
  *reply.mutable_members() = members;
  const std::string runs = reply.SerializeAsString();
  const size_t message_bytes = message.size();
  const size_t reply_bytes =
      runs.size() + 1 + CodedOutputStream::VarintSize64(message_bytes) + message_bytes;
  const bool as_one = message_bytes <= kCopiedBytes;
  std::string head(size_t{2} * 11 + runs.size() + (as_one ? message_bytes : 0), '\0');
  auto* to = reinterpret_cast<uint8_t*>(head.data());
  to = CodedOutputStream::WriteTagToArray(kReply, to);
  to = CodedOutputStream::WriteVarint64ToArray(reply_bytes, to);
  to = CodedOutputStream::WriteRawToArray(runs.data(), static_cast<int>(runs.size()), to);
  to = CodedOutputStream::WriteTagToArray(kMessage, to);
  to = CodedOutputStream::WriteVarint64ToArray(message_bytes, to);
  if (as_one)
    to = CodedOutputStream::WriteRawToArray(message.begin(), static_cast<int>(message_bytes), to);
  Framed framed{.head =
                    grpc::Slice(head.data(),
                                static_cast<size_t>(to - reinterpret_cast<uint8_t*>(head.data())))};
  if (!as_one) framed.rest = message;
  return framed;
}

void Session::SendTo(const Framed& message) {
  const grpc::Slice parts[] = {message.head, message.rest};
  grpc::ByteBuffer bytes(parts, message.rest.size() > 0 ? 2 : 1);
  {
    MutexLock lock(&mu_);
    if (close_status_.has_value() || QueueLocked(std::move(bytes), CountedOf(message.rest))) return;
  }
  calls_.full(*this);
}

void Session::CloseMembers(const MemberRuns& members, const absl::Status& status) {
  v1::NodeReplies replies;
  v1::NodeReply& reply = *replies.add_replies();
  *reply.mutable_members() = members;
  reply.mutable_close()->set_code(status.raw_code());
  reply.mutable_close()->set_message(std::string(status.message()));
  const grpc::Slice slice(replies.SerializeAsString());
  {
    MutexLock lock(&mu_);
    if (close_status_.has_value() || QueueLocked(grpc::ByteBuffer(&slice, 1), 0)) return;
  }
  calls_.full(*this);
}

bool Session::QueueLocked(grpc::ByteBuffer message, size_t counted) {
  if (outbox_.Add(std::move(message), counted)) return true;
  CloseAsFullLocked();
  return false;
}

void Session::CloseAsFullLocked() {
  close_status_ = absl::ResourceExhaustedError(
      absl::StrCat(kind_ == Kind::kNode ? "the relay " : "the worker ", outbox_.WhyFull()));
  // What is queued is of no use to it without the rest.
  DiscardOutboxLocked();
}

void Session::DiscardOutboxLocked() {
  outbox_.Discard();
  CountOutboxLocked();
}

void Session::CountOutboxLocked() {
  if (const int64_t growth = outbox_.TakeGrowth(); growth != 0) metrics_.AddOutboxMessages(growth);
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
  stream_.context->TryCancel();
  LetGo();
}

bool Session::joined() const {
  MutexLock lock(&mu_);
  return known_ != Known::kNobody;
}

absl::Status Session::CloseStatus() const {
  MutexLock lock(&mu_);
  return close_status_.value_or(absl::OkStatus());
}

bool Session::closing() const {
  MutexLock lock(&mu_);
  return close_status_.has_value();
}

bool Session::Hold() {
  MutexLock lock(&mu_);
  if (output_ == Output::kFinished) return false;
  ++holds_;
  return true;
}

void Session::LetGo() {
  bool may_end = false;
  {
    MutexLock lock(&mu_);
    may_end = --holds_ == 0 && close_status_.has_value();
  }
  if (may_end) WriteNext();
}

void Session::WriteNext() {
  std::optional<absl::Status> end;
  {
    MutexLock lock(&mu_);
    const bool may_write = output_ == Output::kIdle;
    const bool writes = may_write && !outbox_.empty();
    if (writes) outgoing_ = outbox_.Take();
    CountOutboxLocked();
    if (!may_write) return;
    if (writes) {
      output_ = Output::kWriting;
    } else if (close_status_.has_value() && holds_ == 0) {
      output_ = Output::kFinished;
      end = close_status_;
    } else {
      return;
    }
  }
  // From here on another thread may be in OnWriteDone or OnDone: members are not touched any more.
  if (end.has_value()) {
    COORDD_TSAN_RELEASE(&output_);
    Finish(ToGrpc(*end));
  } else {
    COORDD_TSAN_RELEASE(&outgoing_);
    StartWrite(&outgoing_);
  }
}

void Session::OnWriteDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&outgoing_);
  bool reads = false;
  {
    MutexLock lock(&mu_);
    if (output_ == Output::kWriting) output_ = Output::kIdle;
    outbox_.Written();
    if (!ok) DiscardOutboxLocked();  // the stream is broken; OnReadDone tells the coordinator
    reads = !close_status_.has_value() && outbox_.LetsReaderGo();
    if (reads) ++holds_;
  }
  if (ok) metrics_.OnMessageSent();
  if (reads) GoOnAndLetGo();
  WriteNext();
}

std::optional<Inbound> Session::EndLocked(const std::string& detail) {
  if (known_ != Known::kJoined) return std::nullopt;
  known_ = Known::kEnded;
  if (kind_ == Kind::kWorker) return SessionEnded{id_, detail};
  return StreamsLost{members_.MayBeOpen(),
                     absl::StrCat("the relay of ", members_.hostname(), " was lost",
                                  detail.empty() ? "" : ": ", detail)};
}

void Session::Ended(const std::string& detail) {
  std::optional<Inbound> end;
  {
    MutexLock lock(&mu_);
    end = EndLocked(detail);
  }
  // The coordinator closes the session once the state has seen this, with what the state decided
  // before. (The state knows nothing of a node session itself.)
  const bool closes = end.has_value() && kind_ == Kind::kWorker;
  if (end.has_value() && inbox_.Push(*std::move(end)) && closes) return;
  Close(absl::OkStatus());
}

void Session::OnDone() {
  COORDD_TSAN_ACQUIRE(&output_);
  std::optional<Inbound> end;
  std::shared_ptr<Session> self;
  int64_t members = 0;
  {
    MutexLock lock(&mu_);
    output_ = Output::kFinished;
    end = EndLocked("coordd closed the stream");
    members = static_cast<int64_t>(members_.size());
    self = std::move(self_);
  }
  if (end.has_value()) inbox_.Push(*std::move(end));
  if (kind_ == Kind::kNode) {
    metrics_.AddSessions(-members);
    metrics_.AddNodeSessions(-1);
  } else {
    metrics_.AddSessions(-1);
  }
  calls_.done(id_);
  COORDD_TSAN_RELEASE(&metrics_);  // the server's Shutdown waits for this callback
  // `self` goes last; whoever else still holds this finds it finished.
}

}  // namespace coordd
