#include "worker/runtime/control.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "common/base/log.h"
#include "common/base/thread.h"
#include "worker/coordinator/coordinator_link.h"
#include "worker/gpu/nvml/gpu_watch.h"
#include "worker/runtime/comm_calls.h"
#include "worker/runtime/completion.h"
#include "worker/runtime/generation_plane.h"
#include "worker/runtime/worker_metrics.h"

namespace coordd {

Control::Control(WorkerStateOptions options, Needs parts, Stream stream,
                 std::shared_ptr<GenerationPlane> plane, ControlHooks hooks)
    : needs_(parts),
      make_link_(std::move(stream.make_link)),
      hooks_(std::move(hooks)),
      state_(options, parts.clock.Now()),
      table_({options.generation,
              ToInt(options.rank),
              options.size,
              {},
              nullptr,
              options.on_failure == OnFailure::kContinue},
             options.rank, parts.clock),
      sleeps_until_(absl::InfinitePast()),
      plane_(std::move(plane)),
      active_(plane_->data_plane.get()),
      link_(std::move(stream.link)) {
  for (DefineGroup& set : table_.Begin(state_.process_sets())) Do(set);
}

Control::~Control() { Join(); }

void Control::Start(std::vector<ControlEvent> early) {
  thread_ =
      StartThread("control", [this, early = std::move(early)]() mutable { Run(std::move(early)); });
}

void Control::Join() {
  if (thread_.joinable()) thread_.join();
  MutexLock lock(&mu_);
  joined_ = true;
  while (carrying_out_) carried_out_.Wait(&mu_);
}

void Control::FailRest(const absl::Status& status) {
  Actions rest;
  {
    MutexLock lock(&mu_);
    rest = std::move(actions_);
    actions_.clear();
    for (ControlAction& action : table_.FailAll(status)) rest.push_back(std::move(action));
  }
  for (ControlAction& action : rest) {
    if (auto* failure = std::get_if<FailWork>(&action)) Do(*failure);
    if (auto* answer = std::get_if<AnswerCall>(&action)) Do(*answer);
  }
  // Calls that nobody took.
  for (ControlEvent& event : needs_.inbox.TakeAll(absl::InfinitePast())) {
    if (auto* call = std::get_if<ProcessSetCall>(&event)) call->reply->Deliver(status);
  }
  link_.reset();
}

void Control::Run(std::vector<ControlEvent> early) {
  std::optional<absl::Time> next = Turn(std::move(early));
  while (next.has_value() && !needs_.inbox.Finished()) next = Turn(needs_.inbox.TakeAll(*next));
  // What another thread has left for this one, which it cannot wake any more.
  Actions rest;
  {
    MutexLock lock(&mu_);
    while (carrying_out_) carried_out_.Wait(&mu_);
    rest = TakeActionsLocked();
  }
  CarryOut(std::move(rest));
}

std::optional<absl::Time> Control::Turn(std::vector<ControlEvent> events) {
  Actions actions;
  std::optional<absl::Time> next;
  bool asks_for_stack = false;
  {
    MutexLock lock(&mu_);
    const absl::Time now = NotBeforeLocked(needs_.clock.Now());
    for (ControlEvent& event : events) StepLocked(event, now);
    state_.Tick(now, effects_);
    ResolveLocked();
    if (const auto awaited = table_.Awaited(state_.question()))
      StepLocked(ProgramWaits{*awaited}, now);
    sleeps_until_ = state_.NextDeadline();
    if (!state_.stopped()) next = sleeps_until_;
    actions = TakeActionsLocked();
    asks_for_stack = state_.TakeStackWanted();
  }
  CarryOut(std::move(actions));
  if (asks_for_stack) needs_.stacks.Ask();
  UpdateMetrics();
  return next;
}

void Control::StepLocked(ControlEvent& event, absl::Time now) {
  std::visit(
      [this, now](auto& one) ABSL_NO_THREAD_SAFETY_ANALYSIS {
        using Event = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<Event, ProcessSetCall>) {
          StepLocked(WorkerEvent(table_.Add(std::move(one))), now);
        } else if constexpr (!std::is_same_v<Event, TurnDue>) {
          StepLocked(WorkerEvent(std::move(one)), now);
        }
      },
      event);
}

void Control::StepLocked(WorkerEvent event, absl::Time now) {
  state_.Step(std::move(event), now, effects_);
  ResolveLocked();
  if (!table_.has_again()) return;
  // A generation has followed another, and what that one had launched comes first.
  state_.Step(table_.TakeAgain(), now, effects_);
  ResolveLocked();
}

void Control::ResolveLocked() {
  for (WorkerEffect& effect : effects_) actions_.push_back(table_.Resolve(std::move(effect)));
  effects_.clear();
}

bool Control::Submit(std::vector<TensorJob>& jobs, absl::Time now) {
  Actions actions;
  bool wake = false;
  {
    MutexLock lock(&mu_);
    if (joined_) return false;
    absl::Time earliest = absl::InfiniteFuture();
    for (const TensorJob& job : jobs) earliest = std::min(earliest, job.deadline);
    StepLocked(table_.Add(std::move(jobs)), NotBeforeLocked(now));
    // A batch of a schedule may wait for the rest of its tensors.
    wake = MustWakeLocked(std::min(earliest, state_.NextScheduleDeadline()));
    actions = TakeActionsLocked();
  }
  if (wake) WakeControl();
  CarryOut(std::move(actions));
  return true;
}

void Control::BatchEnded(BatchDone done) {
  Actions actions;
  bool wake = false;
  {
    MutexLock lock(&mu_);
    table_.Ended(done);
    if (joined_) return;  // its tensors end in FailRest
    EndLocked(std::move(done), wake);
    actions = TakeActionsLocked();
  }
  if (wake) WakeControl();
  CarryOut(std::move(actions));
}

void Control::BatchInterrupted(std::unique_ptr<BatchJob> batch, BatchDone done) {
  Actions actions;
  bool wake = false;
  {
    MutexLock lock(&mu_);
    table_.Interrupted(std::move(batch));
    if (joined_) return;  // its tensors end in FailRest
    EndLocked(std::move(done), wake);
    actions = TakeActionsLocked();
  }
  if (wake) WakeControl();
  CarryOut(std::move(actions));
}

absl::Time Control::NotBeforeLocked(absl::Time now) { return last_now_ = std::max(last_now_, now); }

// What went well has ended a moment ago: reading the clock is a good part of a small collective.
void Control::EndLocked(BatchDone done, bool& wake) {
  const bool just_now = done.status.ok() && done.ended_at != absl::InfinitePast();
  const absl::Time now = NotBeforeLocked(just_now ? done.ended_at : needs_.clock.Now());
  // A failure has a deadline of its own: that of coordd's verdict.
  const absl::Time due = done.status.ok() ? absl::InfiniteFuture() : now;
  StepLocked(std::move(done), now);
  wake = MustWakeLocked(due);
}

bool Control::MustWakeLocked(absl::Time due) {
  if (!state_.turn_due() && due >= sleeps_until_) return false;
  if (sleeps_until_ == absl::InfinitePast()) return false;  // somebody has
  sleeps_until_ = absl::InfinitePast();
  return true;
}

void Control::WakeControl() { needs_.inbox.PushUnbounded(TurnDue{}); }

Control::Actions Control::TakeActionsLocked() {
  Actions taken;
  if (carrying_out_ || actions_.empty()) return taken;
  carrying_out_ = true;
  taken.swap(actions_);
  return taken;
}

void Control::CarryOut(Actions actions) {
  if (actions.empty()) return;
  for (ControlAction& action : actions) std::visit([this](auto& a) { Do(a); }, action);
  actions.clear();
  bool rest = false;
  {
    MutexLock lock(&mu_);
    if (actions_.empty()) actions_.swap(actions);  // for its memory
    carrying_out_ = false;
    carried_out_.NotifyAll();
    rest = !actions_.empty() && sleeps_until_ != absl::InfinitePast();
    if (rest) sleeps_until_ = absl::InfinitePast();
  }
  if (rest) WakeControl();
}

void Control::UpdateMetrics() {
  WorkerMetrics& metrics = needs_.metrics;
  metrics.RecordControlTurn();
  absl::Duration lag, arrival_lag;
  int64_t pending = 0, unreported = 0, executing = 0;
  {
    MutexLock lock(&mu_);
    lag = state_.heartbeat_lag();
    arrival_lag = state_.arrival_lag();
    pending = state_.pending_tensors();
    unreported = state_.unreported_tensors();
    executing = state_.executing_batches();
  }
  metrics.RecordHeartbeatLag(lag);
  metrics.SetArrivalLag(arrival_lag);
  metrics.SetPendingTensors(pending);
  metrics.SetSubmissionsQueued(unreported);
  metrics.SetExecutorQueue(executing);
  const std::shared_ptr<GenerationPlane> now = plane();
  metrics.SetFusionBufferBytes(now->data_plane->fusion_bytes());
  metrics.SetDeviceFusionBufferBytes(now->data_plane->device_fusion_bytes());
  metrics.SetDeviceResultBytes(now->data_plane->device_result_bytes());
  metrics.SetDeviceRegisteredBytes(now->data_plane->device_registered_bytes());
}

void Control::Complete(v1::Heartbeat& heartbeat) {
  if (auto use = active_->DeviceUseBeyond(&told_.device_use))
    *heartbeat.mutable_device_use() = *std::move(use);
  if (auto edges = active_->HostEdgesBeyond(&told_.host_edges)) {
    needs_.metrics.SetEdges(*edges);
    *heartbeat.mutable_host_edges() = *std::move(edges);
  }
  const CommCalls::Totals comms = needs_.comm_calls.totals();
  heartbeat.set_comm_calls(comms.calls);
  heartbeat.set_collectives_completed(heartbeat.collectives_completed() + comms.calls);
  heartbeat.set_batches_completed(heartbeat.batches_completed() + comms.calls);
  heartbeat.set_bytes_reduced(heartbeat.bytes_reduced() + comms.bytes);
  std::vector<WaitingCall> waiting = needs_.comm_calls.Waiting();
  const std::shared_ptr<GenerationPlane> now = plane();
  if (now->messages != nullptr) now->messages->AddWaiting(waiting);
  const absl::Time at = needs_.clock.Now();
  TellOfWaits(std::move(waiting), at, heartbeat);
  active_->TellOfDevice(at, heartbeat);
  heartbeat.set_stack(needs_.stacks.Take());
  needs_.gpu_watch.Watch(heartbeat.device_use().device().uuid());
  if (auto health = needs_.gpu_watch.Latest()) {
    needs_.metrics.SetGpu(*health);
    *heartbeat.mutable_gpu_health() = *std::move(health);
  }
  needs_.gpu_watch.Ask();
}

// What was done without WorkerState.
void Control::Complete(v1::Leave& leave) {
  const CommCalls::Totals comms = needs_.comm_calls.totals();
  leave.set_bytes_reduced(leave.bytes_reduced() + comms.bytes);
  leave.set_batches_completed(leave.batches_completed() + comms.calls);
}

void Control::Do(SendMessage& action) {
  if (action.message.has_heartbeat()) Complete(*action.message.mutable_heartbeat());
  if (action.message.has_leave()) Complete(*action.message.mutable_leave());
  const bool resumes = action.message.join().has_resume();
  const v1::Resume resume = resumes ? action.message.join().resume() : v1::Resume();
  SendToCoordinator(std::move(action.message));
  if (resumes) SendStored(resume);
}

// The first part of the report that follows.
void Control::SendStored(const v1::Resume& resume) {
  v1::WorkerMessage message;
  auto flush = [&] {
    message.set_epoch(resume.epoch());
    message.set_generation(resume.generation());
    message.mutable_resume_report()->set_more(true);
    SendToCoordinator(std::move(message));
    message.Clear();
  };
  int64_t bytes = 0;
  auto count = [&](const auto& key) {
    bytes += static_cast<int64_t>(key.ByteSizeLong());
    if (bytes <= kMaxReportBytes) return;
    flush();
    bytes = 0;
  };
  WrittenReport written = hooks_.stored();
  for (v1::StoredKey& key : written.stored)
    count(*message.mutable_resume_report()->add_stored() = std::move(key));
  for (v1::DeletedKey& key : written.deleted)
    count(*message.mutable_resume_report()->add_deleted() = std::move(key));
  if (message.has_resume_report()) flush();
}

void Control::SendToCoordinator(v1::WorkerMessage message) {
  const absl::Status sent = link_->Send(std::move(message));
  // The end of the stream arrives as an event of its own; a full outbox means that coordd has
  // stopped reading, which ends it.
  if (absl::IsResourceExhausted(sent)) {
    COORDD_LOG(kWarning, "giving up the connection to coordd: ", sent.message());
    link_->Cancel();
  }
}

void Control::Do(DefineGroup& action) {
  if (action.member) active_->DefineGroup(action.process_set, action.ranks);
  if (!action.for_pair) needs_.process_sets.Define(action.process_set, std::move(action.ranks));
}

void Control::Do(EndProcessSet& action) {
  needs_.process_sets.End(action.process_set);
  if (action.member) active_->EndGroup(action.process_set);
}

void Control::Do(EndLane& action) { active_->EndLane(action.lane); }

void Control::Do(AnswerCall& action) { action.reply->Deliver(std::move(action.answer)); }

void Control::Do(LaunchJob& action) {
  for (absl::Duration negotiation : action.negotiation)
    needs_.metrics.RecordNegotiation(negotiation);
  active_->Launch(std::move(action.batch));
}

void Control::Do(FailWork& action) {
  needs_.completion.Fail(std::move(action.work), std::move(action.status));
}

void Control::Do(AbortExecution&) { active_->Abort(); }

void Control::Do(NewcomersWait& action) { hooks_.newcomers_wait(action.count); }

void Control::Do(DrainNoticed& action) { hooks_.drain_noticed(action.until); }

void Control::Do(GenerationEnded& action) { hooks_.generation_ended(action); }

void Control::Do(GenerationInterrupted&) { hooks_.generation_interrupted(); }

void Control::Do(EnterNext& action) {
  // While the memory that holds them is there.
  for (std::unique_ptr<BatchJob>& batch : action.held)
    needs_.completion.FinishHeld(std::move(batch));
  std::map<ProcessSetId, RankList> sets;
  for (const DefineGroup& set : action.process_sets) sets[set.process_set] = set.ranks;
  // The program may go on as soon as the data plane is there.
  needs_.process_sets.Replace(std::move(sets),
                              action.membership.membership().process_sets_follow());
  absl::StatusOr<std::shared_ptr<GenerationPlane>> next =
      hooks_.enter_generation(action.membership);
  if (!next.ok()) {
    // What is launched ends with the error of the old one, which is over.
    needs_.inbox.PushUnbounded(
        ConnectFailed{Generation{action.membership.generation()}, next.status(), std::nullopt});
    return;
  }
  std::shared_ptr<GenerationPlane> old = *std::move(next);
  active_ = old->data_plane.get();
  for (const DefineGroup& set : action.process_sets)
    if (set.member) active_->DefineGroup(set.process_set, set.ranks);
  told_ = {};
  needs_.metrics.SetEdges({});
  {
    MutexLock lock(&mu_);
    old.swap(plane_);
  }
  old->Stop();
}

std::shared_ptr<GenerationPlane> Control::plane() {
  MutexLock lock(&mu_);
  return plane_;
}

void Control::Do(TraceBegin& action) {
  needs_.trace.Begin(TraceRecorder::For::kCoordd, static_cast<size_t>(std::max<int64_t>(
                                                      1, action.bytes_max / kTraceRecordBytes)));
}

void Control::Do(TraceEnd& action) {
  TraceRecorder::Recorded recorded = needs_.trace.End(TraceRecorder::For::kCoordd);
  if (!action.send) return;
  if (action.batches_per_cycle > 0) {
    recorded.records = Within(recorded.records, action.lane, action.batches_per_cycle,
                              action.from_cycle, action.until_cycle);
  }
  int64_t left_out = 0;
  const std::vector<std::string> chunks = ToTraceChunks(recorded.records, active_->backend_name(),
                                                        action.clock, action.bytes_max, left_out);
  for (const std::string& chunk : chunks) {
    SendMessage send{action.chunk};
    send.message.mutable_trace_chunk()->set_batches(chunk);
    Do(send);
  }
  SendMessage last{std::move(action.chunk)};
  last.message.mutable_trace_chunk()->set_last(true);
  last.message.mutable_trace_chunk()->set_dropped(recorded.dropped + left_out);
  Do(last);
}

void Control::Do(OpenStream& action) {
  link_.reset();  // its end is no news, or is of a stream that was given up
  link_ = make_link_();
  told_ = {};
  ControlInbox& inbox = needs_.inbox;
  const int64_t stream = action.stream;
  link_->Start({.on_message =
                    [&inbox, stream](v1::CoordinatorMessage message) {
                      inbox.PushUnbounded(CoordinatorSaid{std::move(message), stream});
                    },
                .on_closed =
                    [&inbox, stream](absl::Status status) {
                      inbox.PushUnbounded(StreamEnded{std::move(status), stream});
                    }});
}

void Control::Do(CoordinatorAway& action) {
  if (hooks_.coordinator_away != nullptr) hooks_.coordinator_away(action);
}

void Control::Do(CloseStream&) { link_->Close(); }

void Control::Do(WorkFinished&) { hooks_.work_finished(); }
void Control::Do(Stopped&) { hooks_.stopped(); }

}  // namespace coordd
