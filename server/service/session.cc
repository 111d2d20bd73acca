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

absl::string_view TextOf(const grpc::Slice& bytes) {
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
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

bool Session::HoldToGoOn() {
  {
    MutexLock lock(&mu_);
    if (close_status_.has_value() || output_ == Output::kFinished) return false;
    // Of what it is answered nothing is lost, if it reads: but it is answered no faster than that.
    if (!outbox_.HoldsReaderUp()) {
      ++holds_;
      return true;
    }
    if (outbox_.KeepsToo(held_.parts.empty() ? 0 : held_.space)) return false;
    CloseAsFullLocked();
  }
  calls_.full(*this);
  return false;
}

void Session::ReadNext() {
  if (HoldToGoOn()) GoOnAndLetGo();
}

void Session::StartNextRead() {
  // Until here what was read has waited, and is its connection's backlog.
  if (const size_t bytes = std::exchange(held_.bytes, 0); bytes > 0) stream_.read.Add(bytes);
  COORDD_TSAN_RELEASE(&incoming_);
  StartRead(&incoming_);
}

void Session::GoOnAndLetGo() {
  if (held_.parts.empty()) {
    StartNextRead();
  } else {
    OfferHeld(/*has_waited=*/false);
  }
  LetGo();
}

void Session::OnReadDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&incoming_);
  if (ok) {
    Take();
  } else {
    // A broken connection needs no words beyond those that the state finds for every loss.
    Ended(stream_.context->IsCancelled() ? "" : "it closed its side of the stream");
  }
}

void Session::Take() {
  if (stream_.caller == nullptr) return;  // the session is closing, without a word of its client's
  const MessageSize size{.bytes = incoming_.Length()};
  if (size.is_small()) {
    Read(/*has_waited=*/false);
  } else if (inbox_.Reserve(size)) {
    Read(/*has_waited=*/true);
  } else {
    WaitForRoom(size);
  }
}

void Session::Read(bool has_waited) {
  grpc::Slice bytes;
  const bool is_small =
      incoming_.Length() <= RepeatedMessages::kMostBytes && incoming_.TrySingleSlice(&bytes).ok();
  const size_t size = incoming_.Length();
  const ParsedMessage* known = is_small ? repeated_.Find(TextOf(bytes)) : nullptr;
  if (known != nullptr) {
    held_ = {.parts = {known->parts.begin(), known->parts.end()}, .bytes = size};
  } else {
    absl::StatusOr<ParsedMessage> parsed = Parse(size);
    if (!parsed.ok()) {
      incoming_.Clear();
      metrics_.OnSessionDropped(ServerMetrics::Drop::kNotParsable);
      Close(parsed.status());
      return;
    }
    if (is_small) repeated_.Remember(TextOf(bytes), *parsed);
    held_ = {.parts = {std::make_move_iterator(parsed->parts.begin()),
                       std::make_move_iterator(parsed->parts.end())},
             .bytes = size,
             .space = parsed->space};
  }
  incoming_.Clear();
  metrics_.OnMessageReceived();
  OfferHeld(has_waited);
}

absl::StatusOr<ParsedMessage> Session::Parse(size_t bytes) {
  grpc::ProtoBufferReader reader(&incoming_);
  if (kind_ == Kind::kNode) {
    // Its memory is used again.
    v1::NodeMessages larger;
    v1::NodeMessages& batch = incoming_.Length() <= kKeptBatchBytes ? batch_ : larger;
    if (!reader.status().ok() || !batch.ParseFromZeroCopyStream(&reader)) {
      return absl::InvalidArgumentError(
          "what was sent cannot be parsed as a message coordd.v1.NodeMessages");
    }
    COORDD_RETURN_IF_ERROR(CheckSpace(batch, bytes).status());
    return TakeNodeMessages(batch, bytes);
  }
  SessionMessage in{.session = id_, .message = {}};
  if (!reader.status().ok() || !in.message.ParseFromZeroCopyStream(&reader)) {
    return absl::InvalidArgumentError(
        "what was sent cannot be parsed as a message coordd.v1.WorkerMessage");
  }
  COORDD_ASSIGN_OR_RETURN(const size_t space, CheckSpace(in.message, bytes));
  if (in.message.has_join()) {
    in.caller = stream_.caller;
    stream_.metrics_addresses.Apply(stream_.caller->peer, *in.message.mutable_join());
    stream_.job = std::hash<std::string>()(in.message.join().job());
  }
  std::vector<Heard> alone;
  alone.push_back({.in = std::move(in), .bytes = bytes, .space = space});
  ParsedMessage parsed{.parts = PartsOf(id_, std::move(alone), bytes), .space = space};
  MutexLock lock(&mu_);
  if (known_ == Known::kNobody) known_ = Known::kJoined;
  return parsed;
}

absl::Status Session::MayGreet(const v1::NodeMessages& batch) {
  if (!batch.has_hello()) return absl::OkStatus();
  const std::string& job = batch.hello().job();
  stream_.job = std::hash<std::string>()(job);
  const absl::Status allowed = MayCallWithToken(stream_.caller->identity, Call::kNodeSession, job);
  if (!allowed.ok()) {
    stream_.audit.Note(
        {.call = Call::kNodeSession, .caller = stream_.caller, .job = job, .outcome = allowed});
  }
  return allowed;
}

absl::StatusOr<ParsedMessage> Session::TakeNodeMessages(const v1::NodeMessages& batch,
                                                        size_t bytes) {
  COORDD_RETURN_IF_ERROR(MayGreet(batch));
  std::vector<Heard> in;
  std::vector<std::pair<int32_t, absl::Status>> refused;
  absl::Status status;
  int64_t opened = 0;
  bool may_repeat = false;
  {
    MutexLock lock(&mu_);
    const auto before = static_cast<int64_t>(members_.size());
    status = members_.Take(batch, in, refused);
    if (known_ == Known::kNobody && members_.said_hello()) known_ = Known::kJoined;
    opened = static_cast<int64_t>(members_.size()) - before;
    // What greets, or opens or ends a member, is said once.
    may_repeat = repeated_.MembersAre(members_.changes()) && !batch.has_hello();
  }
  metrics_.AddSessions(opened);
  if (!status.ok()) return status;
  size_t space = 0;
  for (Heard& one : in) {
    space += one.space;
    if (const auto* shared = std::get_if<SharedMessage>(&one.in);
        shared != nullptr && shared->message->has_join())
      return absl::InvalidArgumentError("a relay broke the protocol: a Join of several members");
    auto* const said = std::get_if<SessionMessage>(&one.in);
    if (said == nullptr || !said->message.has_join()) continue;
    said->caller = stream_.caller;
    stream_.metrics_addresses.Apply(stream_.caller->peer, *said->message.mutable_join());
  }
  for (const auto& [member, why] : refused) {
    MemberRuns runs;
    AddMember(member, &runs);
    CloseMembers(runs, why);
  }
  if (!refused.empty()) Flush();
  return ParsedMessage{
      .parts = PartsOf(id_, std::move(in), bytes), .space = space, .may_repeat = may_repeat};
}

bool Session::OfferPart(bool has_waited) {
  // Held, so that the end of the session cannot be reported before this message.
  if (!Hold()) return true;
  const MessagePart& part = held_.parts.front();
  const Inbox::Arrival arrival{.size = part.size, .has_waited = has_waited};
  Inbox::Item item(part.in);
  const bool taken = part.report.words > 0 ? inbox_.Offer(std::move(item), arrival, part.report)
                                           : inbox_.Offer(std::move(item), arrival);
  LetGo();
  if (taken) {
    held_.parts.pop_front();
    held_.has_begun = true;
  } else {
    WaitForRoom(held_.parts.front().size);
  }
  return taken;
}

void Session::OfferHeld(bool has_waited) {
  while (OfferPart(std::exchange(has_waited, false))) {
    // From here on, if it returns, another thread may have the read turn.
    if (!HoldToGoOn()) return;
    if (held_.parts.empty()) {
      StartNextRead();
      LetGo();
      return;
    }
    LetGo();
  }
}

void Session::WaitForRoom(const MessageSize& size) {
  // Full: nothing more is read from this worker, so HTTP/2 flow control holds it back.
  std::shared_ptr<Session> self;
  {
    MutexLock lock(&mu_);
    self = self_;
  }
  if (self == nullptr) return;  // gRPC is done with it
  metrics_.OnReadWithheld();
  auto resume = [self] {
    if (self->closing() || !self->Hold()) return;
    if (self->held_.parts.empty()) {
      self->Read(/*has_waited=*/true);
    } else {
      self->OfferHeld(/*has_waited=*/true);
    }
    self->LetGo();
  };
  WaitingLine::Place place{.account = stream_.account,
                           .job = stream_.job,
                           .size = size,
                           .has_begun = !held_.parts.empty() && held_.has_begun,
                           .resume = std::move(resume)};
  if (!inbox_.WaitForRoom(std::move(place))) Close(absl::UnavailableError("coordd is stopping"));
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
