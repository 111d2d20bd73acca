#include "worker/control.h"

#include <utility>

#include "common/check.h"
#include "common/log.h"
#include "common/thread.h"
#include "worker/completion.h"
#include "worker/coordinator_link.h"
#include "worker/executor.h"
#include "worker/worker_metrics.h"

namespace coordd {

Control::Control(WorkerStateOptions options, Parts parts, ControlHooks hooks)
    : world_{options.generation, ToInt(options.rank), options.size, {}, nullptr},
      rank_(options.rank),
      parts_(parts),
      hooks_(std::move(hooks)),
      state_(options, parts.clock.Now()) {}

Control::~Control() { Join(); }

void Control::Start(std::vector<ControlEvent> early) {
  thread_ =
      StartThread("control", [this, early = std::move(early)]() mutable { Run(std::move(early)); });
}

void Control::Join() {
  if (thread_.joinable()) thread_.join();
}

void Control::FailRest(const absl::Status& status) {
  for (auto& [id, job] : waiting_) parts_.completion.Fail(std::move(job.work), status);
  for (auto& [id, work] : launched_) parts_.completion.Fail(std::move(work), status);
  waiting_.clear();
  launched_.clear();
  for (auto& [token, reply] : replies_) reply->Deliver(status);
  replies_.clear();
  // Submissions that nobody took.
  for (ControlEvent& event : parts_.inbox.TakeAll(absl::InfinitePast())) {
    if (auto* submitted = std::get_if<JobsSubmitted>(&event))
      for (TensorJob& job : submitted->jobs) parts_.completion.Fail(std::move(job.work), status);
    if (auto* call = std::get_if<ProcessSetCall>(&event)) call->reply->Deliver(status);
  }
}

void Control::Run(std::vector<ControlEvent> early) {
  Turn(std::move(early));
  while (!stopped_ && !parts_.inbox.Finished()) Turn(parts_.inbox.TakeAll(state_.NextDeadline()));
}

void Control::Turn(std::vector<ControlEvent> events) {
  const absl::Time now = parts_.clock.Now();
  const absl::Duration lag_before = state_.heartbeat_lag();
  std::vector<WorkerEffect> effects;
  for (ControlEvent& event : events) state_.Step(Register(std::move(event)), now, effects);
  state_.Tick(now, effects);
  for (WorkerEffect& effect : effects) Perform(effect);
  parts_.metrics.RecordControlTurn();
  if (state_.heartbeat_lag() != lag_before)
    parts_.metrics.RecordHeartbeatLag(state_.heartbeat_lag());
  parts_.metrics.SetPendingTensors(state_.pending_tensors());
  parts_.metrics.SetSubmissionsQueued(static_cast<int64_t>(parts_.inbox.size()));
  parts_.metrics.SetExecutorQueue(state_.executing_batches());
  parts_.metrics.SetFusionBufferBytes(parts_.executor.fusion_bytes());
}

// Splits a submission into what the state machine sees and what stays here; forgets the Works of a
// batch that went well, which the completion thread ends.
WorkerEvent Control::Register(ControlEvent event) {
  if (auto* submitted = std::get_if<JobsSubmitted>(&event)) {
    TensorsSubmitted values;
    for (TensorJob& job : submitted->jobs) {
      const TensorId id{++last_id_};
      values.tensors.push_back({id, job.spec(), job.deadline});
      waiting_.emplace(id, std::move(job));
    }
    return values;
  }
  if (auto* call = std::get_if<ProcessSetCall>(&event)) {
    call->asked.token = ++last_token_;
    replies_.emplace(last_token_, std::move(call->reply));
    return std::move(call->asked);
  }
  if (auto* done = std::get_if<BatchDone>(&event)) {
    const auto batch = batches_.find({done->lane, done->sequence});
    COORDD_CHECK(batch != batches_.end());
    if (done->status.ok())
      for (TensorId id : batch->second) launched_.erase(id);
    batches_.erase(batch);
    return std::move(*done);
  }
  if (auto* said = std::get_if<CoordinatorSaid>(&event)) return std::move(*said);
  if (auto* ended = std::get_if<StreamEnded>(&event)) return std::move(*ended);
  if (std::holds_alternative<LeaveRequested>(event)) return LeaveRequested{};
  return StopForced{};
}

void Control::Perform(WorkerEffect& effect) {
  std::visit([this](auto& e) { Do(e); }, effect);
}

void Control::Do(SendMessage& effect) {
  const absl::Status sent = parts_.link.Send(std::move(effect.message));
  // The end of the stream arrives as an event of its own; a full outbox means that coordd has
  // stopped reading, which ends it.
  if (absl::IsResourceExhausted(sent)) {
    COORDD_LOG(kWarning, "giving up the connection to coordd: ", sent.message());
    parts_.link.Cancel();
  }
}

void Control::Do(DefineProcessSet& effect) {
  auto ranks = std::make_shared<const std::vector<int32_t>>(std::move(effect.ranks));
  if (effect.member) {
    BatchContext context = world_;
    context.process_set = effect.process_set;
    context.size = static_cast<int32_t>(ranks->size());
    context.ranks = ranks;
    context.rank = context.IndexOf(ToInt(rank_));
    process_sets_.emplace(effect.process_set, std::move(context));
    parts_.executor.DefineGroup(effect.process_set, ranks);
  }
  if (!effect.for_pair) parts_.process_sets.Define(effect.process_set, std::move(ranks));
}

void Control::Do(EndProcessSet& effect) {
  parts_.process_sets.End(effect.process_set);
  if (!effect.member) return;
  process_sets_.erase(effect.process_set);
  parts_.executor.EndGroup(effect.process_set);
}

void Control::Do(ProcessSetAnswer& effect) {
  auto reply = replies_.extract(effect.token);
  COORDD_CHECK(!reply.empty());
  if (effect.status.ok()) {
    reply.mapped()->Deliver(effect.process_set);
  } else {
    reply.mapped()->Deliver(std::move(effect.status));
  }
}

void Control::Do(LaunchBatch& effect) {
  std::vector<TensorJob> jobs;
  jobs.reserve(effect.tensors.size());
  auto absent = effect.absent.begin();
  for (TensorId id : effect.tensors) {
    if (ToInt(id) == 0) {
      jobs.emplace_back();
      jobs.back().absent = true;
      jobs.back().work = std::make_shared<Work>(std::move(*absent++), parts_.clock);
      continue;
    }
    auto node = waiting_.extract(id);
    COORDD_CHECK(!node.empty());
    launched_.emplace(id, node.mapped().work);
    jobs.push_back(std::move(node.mapped()));
  }
  for (absl::Duration negotiation : effect.negotiation)
    parts_.metrics.RecordNegotiation(negotiation);
  batches_.emplace(std::pair(effect.lane, effect.sequence), std::move(effect.tensors));
  const bool all = ToInt(effect.process_set) == 0;
  auto batch = std::make_unique<BatchJob>(all ? world_ : process_sets_.at(effect.process_set),
                                          effect.lane, effect.sequence, std::move(jobs));
  batch->last_joined_rank = effect.last_joined_rank;
  parts_.executor.Launch(std::move(batch));
}

void Control::Do(FailTensor& effect) {
  auto waiting = waiting_.extract(effect.id);
  if (!waiting.empty()) {
    parts_.completion.Fail(std::move(waiting.mapped().work), std::move(effect.status));
    return;
  }
  auto launched = launched_.extract(effect.id);
  COORDD_CHECK(!launched.empty());
  parts_.completion.Fail(std::move(launched.mapped()), std::move(effect.status));
}

void Control::Do(AbortExecution&) { parts_.executor.Abort(); }

void Control::Do(GenerationEnded& effect) { hooks_.generation_ended(std::move(effect.status)); }

void Control::Do(CloseStream&) { parts_.link.Close(); }

void Control::Do(Stopped&) {
  stopped_ = true;
  hooks_.stopped();
}

}  // namespace coordd
