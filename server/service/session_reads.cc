// What a session reads, and how it waits for room and for its reader.
#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/tsan_annotations.h"
#include "server/model/validate_message.h"
#include "server/service/session.h"

namespace coordd {
namespace {

absl::string_view TextOf(const grpc::Slice& bytes) {
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

}  // namespace

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

// What has waited until the end is nobody's backlog any more.
Session::~Session() {
  if (held_.bytes > 0) stream_.read.Add(held_.bytes);
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
    held_.bytes = incoming_.Length();
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
  COORDD_RETURN_IF_ERROR(ValidateJobName(job));
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

}  // namespace coordd
