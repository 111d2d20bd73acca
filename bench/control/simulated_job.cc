#include "bench/control/simulated_job.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/heartbeat_pace.h"
#include "common/proto_convert.h"
#include "common/status_macros.h"

namespace coordd::bench {
namespace {

// Against hangs only.
constexpr absl::Duration kJoinTimeout = absl::Minutes(5);
constexpr absl::Duration kRoundTimeout = absl::Minutes(1);

grpc::ByteBuffer Bytes(const v1::WorkerMessage& message) {
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
           .method = "/coordd.v1.Coordinator/Session",
           .sessions = options.shape.ranks(),
           .channels = options.channels},
          [this](int32_t rank, grpc::ByteBuffer& bytes) { OnMessage(rank, bytes); },
          [this](int32_t rank, const absl::Status& status) {
            arrivals_.Fail(absl::AbortedError(
                absl::StrCat("the session of rank ", rank, " ended: ", status.ToString())));
          }) {}

absl::StatusOr<SimulatedJob::Joined> SimulatedJob::Join() {
  const int32_t ranks = options_.shape.ranks();
  arrivals_.Reset(ranks);
  const absl::Time first = Clock::Real().Now();
  absl::Time last;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    crowd_.Open(rank);
    last = Clock::Real().Now();
    Send(rank, JoinMessage(options_.name, options_.shape, rank));
  }
  COORDD_ASSIGN_OR_RETURN(const absl::Time member, arrivals_.Await(kJoinTimeout));
  return Joined{.after_last_join = member - last, .in_all = member - first, .calls_per_rank = 1};
}

void SimulatedJob::Prepare(int32_t tensors) {
  ready_ = Bytes(ReadyMessage(epoch(), generation(), series_++, tensors));
  tensors_ = tensors;
  cached_ = false;
}

void SimulatedJob::UseSlots() {
  MutexLock lock(&mu_);
  if (cached_ || static_cast<int32_t>(given_.size()) != tensors_) return;
  ready_ = Bytes(CachedMessage(epoch(), generation(), given_, given_.back()));
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
      SendHeartbeat(rank);
    }
    COORDD_RETURN_IF_ERROR(arrivals_.Await(kRoundTimeout).status());
    awaits_acks_ = false;
  }
  arrivals_.Reset(options_.shape.ranks());
  const grpc::ByteBuffer bytes = Bytes(ready);
  ++sent_;
  const absl::Time start = Clock::Real().Now();
  crowd_.Send(last, bytes);
  COORDD_ASSIGN_OR_RETURN(const absl::Time end, arrivals_.Await(kRoundTimeout));
  return end - start;
}

void SimulatedJob::SendHeartbeat(int32_t rank) {
  Send(rank, HeartbeatMessage(epoch(), generation(), absl::ToUnixNanos(Clock::Real().Now())));
}

absl::Status SimulatedJob::Beat(absl::Duration time) {
  const int32_t ranks = options_.shape.ranks();
  const absl::Duration interval = absl::Nanoseconds(interval_ns_.load());
  const absl::Time start = Clock::Real().Now();
  for (int32_t rank = 0; beats_begun_ < ranks; ++rank, ++beats_begun_)
    beats_.emplace(start + interval * rank / ranks, rank);
  for (absl::Time now = start; now < start + time; now = Clock::Real().Now()) {
    while (beats_.begin()->first <= now) {
      const int32_t rank = beats_.begin()->second;
      beats_.erase(beats_.begin());
      SendHeartbeat(rank);
      // coordd is on this machine: its clock is ours.
      beats_.emplace(now + UntilNextHeartbeat(interval, ranks, Rank{rank}, now), rank);
    }
    COORDD_RETURN_IF_ERROR(Watch(beats_.begin()->first - Clock::Real().Now()));
  }
  return absl::OkStatus();
}

absl::Status SimulatedJob::Watch(absl::Duration time) {
  arrivals_.Reset(1);  // that never comes
  const absl::Status status = arrivals_.Await(time).status();
  return absl::IsDeadlineExceeded(status) ? absl::OkStatus() : status;
}

void SimulatedJob::Send(int32_t rank, const v1::WorkerMessage& message) {
  ++sent_;
  crowd_.Send(rank, Bytes(message));
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
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kMembership:
      OnMembership(message);
      return;
    case v1::CoordinatorMessage::kPlan:
      OnPlan(rank, message.plan());
      return;
    case v1::CoordinatorMessage::kLeaseAck:
      if (awaits_acks_) arrivals_.Arrive();
      return;
    case v1::CoordinatorMessage::kWaiting:
      return;
    default:
      arrivals_.Fail(Unexpected(rank, message));
  }
}

void SimulatedJob::OnMembership(const v1::CoordinatorMessage& message) {
  epoch_ = message.epoch();
  generation_ = message.generation();
  interval_ns_ = absl::ToInt64Nanoseconds(FromProto(message.membership().heartbeat_interval()));
  arrivals_.Arrive();
}

void SimulatedJob::OnPlan(int32_t rank, const v1::CollectivePlan& plan) {
  int64_t tensors = 0;
  for (const v1::FusedBatch& batch : plan.batches())
    tensors += batch.tensors_size() + batch.slots_size();
  if (rank == 0) batches_ += plan.batches_size();
  if (rank == 0 && !plan.bindings().empty()) {
    MutexLock lock(&mu_);
    given_.clear();
    for (const v1::SlotBinding& binding : plan.bindings()) given_.push_back(binding.slot());
  }
  const int64_t before = members_[static_cast<size_t>(rank)].missing.fetch_sub(tensors);
  if (before < tensors) {
    arrivals_.Fail(absl::InternalError(
        absl::StrCat("rank ", rank, " has a plan of ", tensors, " tensors, expected ", before)));
  } else if (before == tensors) {
    arrivals_.Arrive();
  }
}

}  // namespace coordd::bench
