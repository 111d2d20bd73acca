#include "bench/control/simulated_job.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/protocol/heartbeat_pace.h"
#include "common/protocol/member_runs.h"
#include "common/protocol/proto_convert.h"

namespace coordd::bench {
namespace {

// Against hangs only.
constexpr absl::Duration kJoinTimeout = absl::Minutes(5);
constexpr absl::Duration kRoundTimeout = absl::Minutes(1);

grpc::ByteBuffer Bytes(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

absl::Status Unexpected(int32_t rank, const v1::CoordinatorMessage& message) {
  return absl::InternalError(absl::StrCat("rank ", rank, " was sent what it did not expect: ",
                                          message.ShortDebugString().substr(0, 512)));
}

}  // namespace

SimulatedJob::SimulatedJob(const Options& options)
    : options_(options),
      members_(static_cast<size_t>(options.shape.ranks())),
      crowd_(
          {.server = options.coordd,
           .method = options.shape.node_sessions ? "/coordd.v1.Coordinator/NodeSession"
                                                 : "/coordd.v1.Coordinator/Session",
           .sessions = options.shape.sessions(),
           .channels = options.channels,
           .tls = options.tls},
          [this](int32_t session, grpc::ByteBuffer& bytes) {
            options_.shape.node_sessions ? OnReplies(session, bytes) : OnMessage(session, bytes);
          },
          [this](int32_t session, const absl::Status& status) {
            arrivals_.Fail(absl::AbortedError(
                absl::StrCat("session ", session, " ended: ", status.ToString())));
          }) {}

absl::StatusOr<SimulatedJob::Joined> SimulatedJob::Join() {
  const JobShape& shape = options_.shape;
  const int32_t together = shape.ranks() / shape.sessions();
  arrivals_.Reset(shape.ranks());
  const absl::Time first = Clock::Real().Now();
  absl::Time last;
  for (int32_t session = 0; session < shape.sessions(); ++session) {
    std::vector<Said> joins;
    for (int32_t rank = session * together; rank < (session + 1) * together; ++rank)
      joins.emplace_back(rank, JoinMessage(options_.name, shape, rank));
    crowd_.Open(session);
    last = Clock::Real().Now();
    Send(joins);
  }
  COORDD_ASSIGN_OR_RETURN(const absl::Time member, arrivals_.Await(kJoinTimeout));
  return Joined{.after_last_join = member - last,
                .in_all = member - first,
                .calls_per_rank = static_cast<double>(shape.sessions()) / shape.ranks()};
}

std::vector<SimulatedJob::Said> SimulatedJob::GroupRequests(int32_t turn) const {
  const int32_t ranks = options_.shape.ranks(), per_node = options_.shape.ranks_per_node;
  // A group is of `count` ranks, `stride` apart, as far as there are so many.
  int32_t count = per_node, stride = 1;
  if (turn % 4 == 1) count = options_.shape.nodes, stride = per_node;
  if (turn % 4 == 2) count = 2 * per_node;
  if (turn % 4 == 3) count = std::max(1, ranks / 10);
  std::vector<Said> requests(static_cast<size_t>(ranks));
  for (int32_t first = 0; first < ranks; first += stride == 1 ? count : 1) {
    if (stride > 1 && first >= stride) break;
    std::vector<int32_t> members;
    for (int32_t i = 0; i < count && first + i * stride < ranks; ++i)
      members.push_back(first + i * stride);
    const v1::WorkerMessage request =
        GroupMessage(epoch(), generation(), absl::StrCat("group ", turn, "/", first), members);
    for (const int32_t rank : members) requests[static_cast<size_t>(rank)] = {rank, request};
  }
  return requests;
}

absl::StatusOr<absl::Duration> SimulatedJob::MakeGroups(int32_t groups) {
  absl::Duration taken;
  for (int32_t turn = 0; turn < groups; ++turn) {
    const std::vector<Said> requests = GroupRequests(turn);
    arrivals_.Reset(options_.shape.ranks());
    const absl::Time start = Clock::Real().Now();
    Send(requests);
    COORDD_ASSIGN_OR_RETURN(const absl::Time end, arrivals_.Await(kRoundTimeout));
    taken += end - start;
  }
  return taken;
}

void SimulatedJob::Prepare(int32_t tensors) {
  SetReady(ReadyMessage(epoch(), generation(), series_++, tensors));
  tensors_ = tensors;
  cached_ = false;
}

// All of a node say the same.
void SimulatedJob::SetReady(const v1::WorkerMessage& message) {
  if (!options_.shape.node_sessions) {
    ready_ = Bytes(message);
    return;
  }
  v1::NodeMessages batch;
  v1::NodeMessage& said = *batch.add_messages();
  v1::MemberRun& all = *said.add_members();
  all.set_first(1);
  all.set_count(options_.shape.ranks_per_node);
  said.set_message(message.SerializeAsString());
  ready_ = Bytes(batch);
}

void SimulatedJob::UseSlots() {
  MutexLock lock(&mu_);
  if (cached_ || static_cast<int32_t>(given_.size()) != tensors_) return;
  SetReady(CachedMessage(epoch(), generation(), given_, given_.back()));
  cached_ = true;
}

absl::StatusOr<absl::Duration> SimulatedJob::Round() {
  for (Member& member : members_) member.missing = tensors_;
  arrivals_.Reset(options_.shape.ranks());
  batches_ = 0;
  const absl::Time start = Clock::Real().Now();
  for (int32_t rank = 0; rank < crowd_.sessions(); ++rank) crowd_.Send(rank, ready_);
  sent_ += crowd_.sessions();
  COORDD_ASSIGN_OR_RETURN(const absl::Time end, arrivals_.Await(kRoundTimeout));
  UseSlots();
  return end - start;
}

absl::StatusOr<absl::Duration> SimulatedJob::FirstSight(int32_t tensors) {
  v1::WorkerMessage ready = ReadyMessage(epoch(), generation(), series_++, tensors);
  {
    MutexLock lock(&mu_);
    if (!given_.empty()) ready.mutable_tensors_ready()->add_cached()->set_known(given_.back());
  }
  const int32_t last = options_.shape.ranks() - 1;
  for (Member& member : members_) member.missing = tensors;
  if (last > 0) {
    // A heartbeat is answered behind what came before it.
    awaits_acks_ = true;
    arrivals_.Reset(last);
    for (int32_t rank = 0; rank < last; ++rank) {
      Send(rank, ready);
      Send(rank, Heartbeat());
    }
    COORDD_RETURN_IF_ERROR(arrivals_.Await(kRoundTimeout).status());
    awaits_acks_ = false;
  }
  arrivals_.Reset(options_.shape.ranks());
  const grpc::ByteBuffer bytes = Framed({{last, ready}});
  ++sent_;
  const absl::Time start = Clock::Real().Now();
  crowd_.Send(SessionOf(last), bytes);
  COORDD_ASSIGN_OR_RETURN(const absl::Time end, arrivals_.Await(kRoundTimeout));
  return end - start;
}

v1::WorkerMessage SimulatedJob::Heartbeat() const {
  return HeartbeatMessage(epoch(), generation(), absl::ToUnixNanos(Clock::Real().Now()));
}

absl::Status SimulatedJob::Beat(absl::Duration time) {
  const int32_t ranks = options_.shape.ranks();
  const absl::Duration interval = absl::Nanoseconds(interval_ns_.load());
  const absl::Time start = Clock::Real().Now();
  for (int32_t rank = 0; beats_begun_ < ranks; ++rank, ++beats_begun_)
    beats_.emplace(start + interval * rank / ranks, rank);
  for (absl::Time now = start; now < start + time; now = Clock::Real().Now()) {
    std::vector<Said> due;
    while (beats_.begin()->first <= now) {
      const int32_t rank = beats_.begin()->second;
      beats_.erase(beats_.begin());
      due.emplace_back(rank, Heartbeat());
      // coordd is on this machine: its clock is ours.
      beats_.emplace(now + UntilNextHeartbeat(interval, ranks, Rank{rank}, now), rank);
    }
    std::sort(due.begin(), due.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    Send(due);
    COORDD_RETURN_IF_ERROR(Watch(beats_.begin()->first - Clock::Real().Now()));
  }
  return absl::OkStatus();
}

absl::Status SimulatedJob::Watch(absl::Duration time) {
  arrivals_.Reset(1);  // that never comes
  const absl::Status status = arrivals_.Await(time).status();
  return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
}

grpc::ByteBuffer SimulatedJob::Framed(absl::Span<const Said> together) const {
  if (!options_.shape.node_sessions) return Bytes(together[0].second);
  v1::NodeMessages batch;
  if (together[0].second.has_join())
    *batch.mutable_hello() = HelloMessage(options_.name, SessionOf(together[0].first));
  for (const auto& [rank, message] : together) {
    v1::NodeMessage& said = *batch.add_messages();
    AddMember(rank % options_.shape.ranks_per_node + 1, said.mutable_members());
    said.set_message(message.SerializeAsString());
  }
  return Bytes(batch);
}

void SimulatedJob::Send(absl::Span<const Said> messages) {
  while (!messages.empty()) {
    const int32_t session = SessionOf(messages[0].first);
    size_t together = 1;
    while (options_.shape.node_sessions && together < messages.size() &&
           SessionOf(messages[together].first) == session)
      ++together;
    crowd_.Send(session, Framed(messages.first(together)));
    ++sent_;
    messages.remove_prefix(together);
  }
}

void SimulatedJob::OnMessage(int32_t rank, grpc::ByteBuffer& bytes) {
  static thread_local v1::CoordinatorMessage message;  // keeps its memory
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok() || !message.ParseFromZeroCopyStream(&reader)) {
    arrivals_.Fail(absl::InternalError("coordd sent what cannot be parsed"));
    return;
  }
  ++received_;
  Member& member = members_[static_cast<size_t>(rank)];
  if (message.sequence() != ++member.sequence) {
    arrivals_.Fail(absl::InternalError(absl::StrCat(
        "rank ", rank, " was sent message ", message.sequence(), ", expected ", member.sequence)));
    return;
  }
  Handle({rank}, message);
}

void SimulatedJob::OnReplies(int32_t node, grpc::ByteBuffer& bytes) {
  static thread_local v1::NodeReplies replies;  // these keep their memory
  static thread_local v1::CoordinatorMessage message;
  grpc::ProtoBufferReader reader(&bytes);
  if (!reader.status().ok() || !replies.ParseFromZeroCopyStream(&reader)) {
    arrivals_.Fail(absl::InternalError("coordd sent what cannot be parsed"));
    return;
  }
  ++received_;
  for (const v1::NodeReply& reply : replies.replies()) {
    if (reply.has_close() || !message.ParseFromString(reply.message())) {
      arrivals_.Fail(absl::InternalError(absl::StrCat(
          "node ", node,
          " was sent what it did not expect: ", reply.ShortDebugString().substr(0, 512))));
      return;
    }
    for (const v1::MemberRun& run : reply.members())
      Handle({node * options_.shape.ranks_per_node + run.first() - 1, run.count()}, message);
  }
}

void SimulatedJob::Handle(Receivers to, const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kMembership:
      epoch_ = message.epoch();
      generation_ = message.generation();
      interval_ns_ = absl::ToInt64Nanoseconds(FromProto(message.membership().heartbeat_interval()));
      arrivals_.Arrive(to.count);
      return;
    case v1::CoordinatorMessage::kPlan:
      OnPlan(to, message.plan());
      return;
    case v1::CoordinatorMessage::kLeaseAck:
      if (awaits_acks_) arrivals_.Arrive(to.count);
      return;
    case v1::CoordinatorMessage::kProcessSetChange:
      if (message.process_set_change().code() == 0) return arrivals_.Arrive(to.count);
      arrivals_.Fail(Unexpected(to.first, message));
      return;
    case v1::CoordinatorMessage::kWaiting:
      return;
    default:
      arrivals_.Fail(Unexpected(to.first, message));
  }
}

void SimulatedJob::OnPlan(Receivers to, const v1::CollectivePlan& plan) {
  int64_t tensors = 0;
  for (const v1::FusedBatch& batch : plan.batches())
    tensors += batch.tensors_size() + batch.slots_size();
  if (to.first == 0) batches_ += plan.batches_size();
  if (to.first == 0 && !plan.bindings().empty()) {
    MutexLock lock(&mu_);
    given_.clear();
    for (const v1::SlotBinding& binding : plan.bindings()) given_.push_back(binding.slot());
  }
  int64_t complete = 0;
  for (int32_t rank = to.first; rank < to.first + to.count; ++rank) {
    const int64_t before = members_[static_cast<size_t>(rank)].missing.fetch_sub(tensors);
    if (before < tensors) {
      arrivals_.Fail(absl::InternalError(
          absl::StrCat("rank ", rank, " has a plan of ", tensors, " tensors, expected ", before)));
    }
    complete += before == tensors ? 1 : 0;
  }
  if (complete > 0) arrivals_.Arrive(complete);
}

}  // namespace coordd::bench
