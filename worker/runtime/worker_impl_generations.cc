// The part of WorkerImpl that changes from one generation to the next, of its memory, and of a
// worker's end.
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/interfaces/peer_status.h"
#include "worker/protocol/join_message.h"
#include "worker/runtime/device_memory_calls.h"
#include "worker/runtime/device_plane_options.h"
#include "worker/runtime/worker_runtime.h"

namespace coordd {

absl::StatusOr<std::shared_ptr<GenerationPlane>> WorkerImpl::MakeDataPlane(
    const v1::CoordinatorMessage& membership) {
  Runtime& r = *runtime_;
  COORDD_ASSIGN_OR_RETURN(MemberPlace place, ParseMembership(membership));
  const Placement& placement = place.placement;
  r.metrics.SetPlacement(placement.generation, placement.rank, placement.size);
  COORDD_ASSIGN_OR_RETURN(std::unique_ptr<CollectiveBackend> backend,
                          r.seams.make_backend(place.layout));
  const bool continues = options_.on_failure == OnFailure::kContinue;
  auto made = std::make_shared<GenerationPlane>();
  GenerationPlane& plane = *made;
  // Keys of generations end with them, here as at coordd.
  r.seams.store_record->Forget(r.generation_prefix);
  r.generation_prefix = place.store_prefix;
  plane.store = std::make_unique<PrefixStore>(place.store_prefix, *r.seams.store);
  plane.edges = backend->edges();
  const int32_t cores = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  plane.executor = std::make_unique<Executor>(
      ExecutorOptions{.fusion_buffer_bytes = options_.fusion_buffer_bytes,
                      .polling_threads = placement.local_size,
                      .cores = cores,
                      .confirm = continues,
                      .names_elements = options_.check_results.has_value()},
      std::move(backend), clock_, [&r, &plane](std::unique_ptr<BatchJob> batch) {
        if (batch->sizes_only) return plane.devices->HostDone(std::move(batch));
        r.completion->Finish(std::move(batch));
      });
  MakeDevicePlane(placement.generation, place.layout, plane);
  MakeMessages(placement, plane);
  plane.data_plane =
      std::make_unique<DataPlane>(*plane.executor, *plane.devices, plane.edges.get());
  {
    MutexLock lock(&mu_);
    next_ = std::make_shared<const View>(View{placement, made});
    next_connected_ = false;
    connect_status_ = absl::OkStatus();
  }
  if (continues) EnterNext();
  const Generation generation = placement.generation;
  plane.executor->StartConnecting(
      std::move(place.layout), *plane.store, clock_.Now() + options_.connect_timeout,
      [this, generation](const absl::Status& status) { OnConnected(generation, status); });
  return made;
}

// Where programs go on without being asked, they are in it at once: before anything of it executes,
// and before what cannot go on fails.
void WorkerImpl::EnterNext() {
  GenerationCallbacks::Shared callbacks;
  Placement entered;
  {
    MutexLock lock(&mu_);
    if (view_ == nullptr) return;  // the first one, for which Start waits
    view_ = next_;
    interrupted_ = false;
    entered = view_->placement;
    callbacks = callbacks_.Begin();
    changed_.NotifyAll();
  }
  for (const auto& callback : callbacks) (*callback)(entered);
  MutexLock lock(&mu_);
  callbacks_.End();
  changed_.NotifyAll();
}

void WorkerImpl::OnGeneration(GenerationCallback entered) {
  MutexLock lock(&mu_);
  if (entered != nullptr) return callbacks_.Add(std::move(entered));
  callbacks_.Clear();
  auto ended = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return callbacks_.idle(); };
  clock_.Await(&mu_, &changed_, ended, absl::InfiniteFuture());
}

void WorkerImpl::OnGenerationInterrupted() {
  MutexLock lock(&mu_);
  interrupted_ = true;
}

void WorkerImpl::MakeDevicePlane(Generation generation, const GroupLayout& layout,
                                 GenerationPlane& plane) {
  Runtime& r = *runtime_;
  DevicePlane::Hooks hooks;
  hooks.finished = [&r](std::unique_ptr<BatchJob> batch) {
    r.completion->Finish(std::move(batch));
  };
  hooks.to_host = [&plane](std::unique_ptr<BatchJob> batch) {
    plane.executor->Launch(std::move(batch));
  };
  hooks.stage = [this](std::unique_ptr<BatchJob> batch, DeviceStager::Back back) {
    const absl::StatusOr<DeviceStager*> stager = Stager();
    if (stager.ok()) return (*stager)->StageBatch(std::move(batch), std::move(back));
    batch->status = stager.status();
    back(std::move(batch));
  };
  hooks.open_exchanges = [&plane](LaneId lane, RankList ranks) {
    plane.executor->DefineGroup(ProcessSetId{ToInt(lane)}, std::move(ranks));
  };
  hooks.end_exchanges = [&plane](LaneId lane) { plane.executor->EndExchanges(lane); };
  hooks.exchange = [&plane](CollectiveArgs args, CollectiveBackend::Done done) {
    plane.executor->LaunchExchange(std::move(args), std::move(done));
  };
  hooks.end_lane = [&plane](LaneId lane) { plane.executor->EndLane(lane); };
  hooks.free_name = [&r](const TensorSpec& spec) { r.names.Erase(spec); };
  plane.devices = std::make_shared<DevicePlane>(DevicePlaneOptionsOf(options_, generation), layout,
                                                r.gpus, *plane.store, clock_, std::move(hooks));
}

void WorkerImpl::MakeMessages(const Placement& placement, GenerationPlane& plane) {
  PointToPoint::Needs needs;
  needs.generation = placement.generation;
  needs.self = placement.rank;
  needs.size = placement.size;
  needs.executor = plane.executor.get();
  needs.clock = &clock_;
  needs.count = [this, &plane, calls = runtime_->comm_calls](CollectiveKind kind,
                                                             absl::StatusCode code, int64_t bytes) {
    if (code == absl::StatusCode::kOk) calls->CountMessage(bytes);
    if (plane.end.ended()) return;  // the metrics may be gone
    runtime_->metrics.RecordCollective(kind, plane.executor->backend_name(), code,
                                       code == absl::StatusCode::kOk ? bytes : 0);
  };
  needs.report_failure = [this, of = placement.generation](const absl::Status& why) {
    runtime_->inbox.PushUnbounded(ConnectFailed{of, why, SuspectOf(why), /*was_connected=*/true});
  };
  plane.messages = std::make_unique<PointToPoint>(std::move(needs));
}

void WorkerImpl::OnConnected(Generation generation, const absl::Status& status) {
  if (!status.ok() && options_.on_failure != OnFailure::kEnd)
    runtime_->inbox.PushUnbounded(ConnectFailed{generation, status, SuspectOf(status)});
  MutexLock lock(&mu_);
  if (next_ == nullptr || next_->placement.generation != generation) return;
  next_connected_ = status.ok();
  runtime_->metrics.SetMapsNodeMemory(status.ok() && next_->plane->executor->arena() != nullptr);
  connect_status_ = status;
  changed_.NotifyAll();
}

absl::Status WorkerImpl::AwaitFirstGeneration(int32_t rank) {
  const bool ends = options_.on_failure == OnFailure::kEnd;
  // Where a generation follows another the first one that connects will do.
  const absl::Time deadline =
      ends ? absl::InfiniteFuture() : clock_.Now() + options_.connect_timeout;
  MutexLock lock(&mu_);
  auto decided = [this, ends]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return (next_ != nullptr && next_connected_) || (ends && !connect_status_.ok()) ||
           (!ends && ended_for_good_);
  };
  clock_.Await(&mu_, &changed_, decided, deadline);
  // Who was connected first may have left again: its goodbye is no failure of this one's start, but
  // the end of what follows. coordd tells of it after the data plane has, perhaps.
  constexpr absl::Duration kPatience = absl::Seconds(2);
  auto ended = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !status_.ok(); };
  if (ends && SuspectOf(connect_status_).has_value())
    clock_.Await(&mu_, &changed_, ended, clock_.Now() + kPatience);
  if (next_ != nullptr && (next_connected_ || IsByGoodbyes(status_))) {
    view_ = std::move(next_);
    if (!ended_for_good_) status_ = absl::OkStatus();
    return absl::OkStatus();
  }
  // If the generation has ended, that is why.
  const absl::Status timeout = absl::DeadlineExceededError("other ranks were not there in time");
  const absl::Status why =
      !status_.ok() ? status_ : (connect_status_.ok() ? timeout : connect_status_);
  return absl::Status(why.code(), absl::StrCat("the data plane of rank ", rank,
                                               " could not be connected: ", why.message()));
}

void WorkerImpl::OnGenerationEnded(const GenerationEnded& ended) {
  MutexLock lock(&mu_);
  // The program has to hear of the first end that it does not know of.
  if (status_.ok() || ended.for_good) status_ = ended.status;
  EndComms(ended.status);
  ended_for_good_ = ended_for_good_ || ended.for_good;
  if (!ended.for_good) next_ = nullptr;
  changed_.NotifyAll();
}

void WorkerImpl::EndComms(const absl::Status& why) {
  for (const ViewPtr& view : {view_, next_}) {
    if (view == nullptr) continue;
    view->plane->end.Set(why);
    view->plane->messages->End(why);
    view->plane->executor->RingComms();
  }
}

Placement WorkerImpl::placement() const {
  MutexLock lock(&mu_);
  return view_ == nullptr ? Placement() : view_->placement;
}

std::string WorkerImpl::host_address() const {
  return HostAddress(options_.coordinator, placement().nodes > 1);
}

absl::StatusOr<WorkerImpl::ViewPtr> WorkerImpl::CurrentView() const {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  ViewPtr view;
  absl::Status ended;
  {
    MutexLock lock(&mu_);
    view = view_;
    ended = status_;
  }
  if (ended.ok()) return view;
  // Whoever knows of the end may go on with what a device holds back.
  if (view != nullptr) view->plane->devices->ToldOfTheEnd();
  return ended;
}

absl::StatusOr<Placement> WorkerImpl::AwaitGeneration(absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  auto decided = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (status_.ok()) return !interrupted_;
    return ended_for_good_ || (next_ != nullptr && next_connected_);
  };
  // It may be long until the next one is there: what a device holds back goes on before.
  CurrentView().IgnoreError();
  {
    MutexLock lock(&mu_);
    clock_.Await(&mu_, &changed_, decided, deadline);
    if (status_.ok() && interrupted_)
      return absl::DeadlineExceededError("no generation has followed yet");
    if (status_.ok()) return view_->placement;
    // Its memory is no longer the others', for a call that goes on either.
    if (IsByGoodbyes(status_)) EndComms(absl::Status(status_.code(), status_.message()));
  }
  // Before anything can be submitted to the next generation.
  COORDD_RETURN_IF_ERROR(memory_->TakeBack());
  ViewPtr over;
  Placement placement;
  {
    MutexLock lock(&mu_);
    clock_.Await(&mu_, &changed_, decided, deadline);
    if (status_.ok()) return view_->placement;
    if (ended_for_good_) return status_;
    if (next_ == nullptr || !next_connected_) {
      return absl::DeadlineExceededError(
          absl::StrCat("no generation has followed yet: ", status_.message()));
    }
    over = std::exchange(view_, std::move(next_));
    next_ = nullptr;
    status_ = absl::OkStatus();
    placement = view_->placement;
  }
  if (over != nullptr) over->plane->devices->ToldOfTheEnd();
  runtime_->plane_end.Take(std::move(over));
  return placement;
}

absl::StatusOr<Placement> WorkerImpl::ChangeMembers(Generation agreed_in, absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  if (options_.on_failure == OnFailure::kEnd) {
    return absl::FailedPreconditionError(
        "the members of this job do not change: expected COORDD_ON_FAILURE=raise or continue on "
        "all of them");
  }
  const bool continues = options_.on_failure == OnFailure::kContinue;
  if (continues && ToInt(agreed_in) == 0) {
    return absl::InvalidArgumentError(
        "a change of members with COORDD_ON_FAILURE=continue: expected the generation of the "
        "result by which the ranks have agreed to it");
  }
  if (!continues) {
    MutexLock lock(&mu_);
    agreed_in = view_->placement.generation;
  }
  runtime_->inbox.PushUnbounded(MembersMayChange{agreed_in});
  {
    MutexLock lock(&mu_);
    // With kContinue programs are in the next one without a word.
    auto ended = [this, agreed_in]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return !status_.ok() || view_->placement.generation > agreed_in;
    };
    clock_.Await(&mu_, &changed_, ended, deadline);
    if (status_.ok() && view_->placement.generation > agreed_in) return view_->placement;
    if (status_.ok()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "generation ", ToInt(agreed_in), " has not ended yet: rank 0 asks coordd for it"));
    }
  }
  return AwaitGeneration(deadline);
}

std::optional<absl::Duration> WorkerImpl::drain_left() const {
  const int64_t until = drain_until_ns_.load();
  if (until == absl::ToUnixNanos(absl::InfiniteFuture())) return std::nullopt;
  return std::max(absl::FromUnixNanos(until) - clock_.Now(), absl::ZeroDuration());
}

absl::Status WorkerImpl::AskToLeave(absl::Duration grace, const std::string& reason) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  if (options_.on_failure == OnFailure::kEnd) {
    return absl::FailedPreconditionError(
        "nobody can leave this job without ending it: expected COORDD_ON_FAILURE=raise or continue "
        "on all members");
  }
  if (grace <= absl::ZeroDuration() || grace > kMaxDrainGrace) {
    return absl::InvalidArgumentError(absl::StrCat("a grace of ", absl::FormatDuration(grace),
                                                   ", expected more than 0 and at most a week"));
  }
  runtime_->inbox.PushUnbounded(DrainAsked{clock_.Now() + grace, reason});
  return absl::OkStatus();
}

// --- memory of a generation -------------------------------------------------------------------

absl::StatusOr<void*> WorkerImpl::AllocateMemory(int64_t size_bytes) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  // With kContinue a collective is repeated in the next generation, while somebody may still be
  // writing the result of the last one.
  return memory_->Allocate(size_bytes, view->plane, options_.on_failure != OnFailure::kContinue);
}

absl::Status WorkerImpl::FreeMemory(void* memory) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  return memory_->Free(memory);
}

absl::StatusOr<void*> WorkerImpl::RegisterMemory(const FileRange& file, absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  absl::StatusOr<void*> memory =
      memory_->Register(file, view->plane, options_.on_failure != OnFailure::kContinue,
                        DeadlineOf(timeout, clock_.Now()));
  if (memory.ok()) return memory;
  return VerdictOn(*view->plane, memory.status());
}

// Somebody's socket, or the store, may tell of a loss before coordd has said who it is.
absl::Status WorkerImpl::VerdictOn(GenerationPlane& plane, absl::Status status) const {
  constexpr absl::Duration kPatience = absl::Seconds(10);
  const bool lost = absl::IsUnavailable(status) || absl::IsAborted(status);
  const absl::Status ended =
      lost ? plane.end.Await(clock_, clock_.Now() + kPatience) : plane.end.status();
  if (ended.ok()) return status;
  if (plane.devices != nullptr) plane.devices->ToldOfTheEnd();
  return ended;
}

absl::Status WorkerImpl::UnregisterMemory(void* memory, absl::Duration timeout) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  const absl::StatusOr<ViewPtr> view = CurrentView();
  const absl::Status status = memory_->Unregister(memory, DeadlineOf(timeout, clock_.Now()));
  if (status.ok() || absl::IsInvalidArgument(status) || !view.ok()) return status;
  return VerdictOn(*(*view)->plane, status);
}

absl::Status WorkerImpl::RegisterDeviceMemory(const DeviceRange& range, absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  if (options_.on_failure == OnFailure::kContinue)
    return absl::UnimplementedError("on_failure continue is for host memory, raise for all");
  COORDD_RETURN_IF_ERROR(PlaceIn(*view, range.process_set).status());
  const auto submit = [this](Submission submission) { return Submit(std::move(submission)); };
  return VerdictOn(*view->plane, RegisterWithNccl(*view->plane->devices, range,
                                                  DeadlineOf(timeout, clock_.Now()), submit));
}

absl::Status WorkerImpl::UnregisterDeviceMemory(ProcessSetId process_set, const void* memory,
                                                absl::Duration timeout) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  CurrentView().IgnoreError();  // the end of the generation, if the program may know that
  ViewPtr view;
  {
    MutexLock lock(&mu_);
    view = view_;
  }
  if (view == nullptr) return absl::OkStatus();  // no generation, and no communicators of it
  const absl::Status status = view->plane->devices->ReleaseMemory(
      process_set, static_cast<const std::byte*>(memory), DeadlineOf(timeout, clock_.Now()));
  return absl::IsAborted(status) ? VerdictOn(*view->plane, status) : status;
}

absl::Status WorkerImpl::CheckMapped(const void* memory, int64_t size_bytes) const {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  return memory_->CheckMapped(memory, size_bytes);
}

// --- the end: a goodbye, a failure, or neither ---------------------------------------------------

absl::Status WorkerImpl::Shutdown(absl::Duration timeout) {
  return EndBy(LeaveRequested{}, timeout);
}

absl::Status WorkerImpl::Fail(const std::string& failure, absl::Duration timeout) {
  return EndBy(LeaveRequested{.failure = failure.empty() ? "an error" : failure}, timeout);
}

absl::Status WorkerImpl::FailByExit(int status, absl::Duration timeout) {
  constexpr int kKept = 0xff;  // what is left of it for whoever waits for the process
  const int kept = status & kKept;
  return Fail(
      absl::StrCat("it exits with status ", status,
                   kept == status ? "" : absl::StrCat(", of which the system keeps ", kept)),
      timeout);
}

absl::Status WorkerImpl::FinishWork(absl::Duration hold, absl::Duration timeout) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  const absl::Time now = clock_.Now();
  MutexLock lock(&mu_);
  if (ending_.phase() != WorkerEnding::Phase::kRuns || runtime_->control == nullptr)
    return absl::OkStatus();
  ending_.AskToFinish();
  runtime_->inbox.PushUnbounded(LeaveRequested{.held_until = now + hold});
  auto is_over = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ending_.work_finished(); };
  if (clock_.Await(&mu_, &changed_, is_over, now + timeout)) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("this rank's collectives had not ended within ", absl::FormatDuration(timeout)));
}

void WorkerImpl::OnEndingGoesOn(void (WorkerEnding::*note)()) {
  MutexLock lock(&mu_);
  (ending_.*note)();
  changed_.NotifyAll();
}

absl::Status WorkerImpl::EndBy(LeaveRequested how, absl::Duration timeout) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  const absl::Time deadline = clock_.Now() + timeout;
  const bool finishes = how.failure.empty();
  {
    MutexLock lock(&mu_);
    if (!ending_.Begin()) {
      // Another thread waits for what this one knows that it will not come to its end.
      const bool ends = ending_.phase() == WorkerEnding::Phase::kEnds;
      if (ends && !finishes && runtime_->control != nullptr)
        runtime_->inbox.PushUnbounded(std::move(how));
      while (ending_.phase() != WorkerEnding::Phase::kEnded) changed_.Wait(&mu_);
      return ending_.result();
    }
  }
  absl::Status result;
  if (runtime_->control != nullptr) {
    runtime_->inbox.PushUnbounded(std::move(how));
    MutexLock lock(&mu_);
    auto has_stopped = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return ending_.stopped(); };
    if (!clock_.Await(&mu_, &changed_, has_stopped, deadline)) {
      result = absl::DeadlineExceededError(
          absl::StrCat("the worker was stopped by force: its collectives had not ended, or coordd "
                       "had not answered, within ",
                       absl::FormatDuration(timeout)));
      runtime_->inbox.PushUnbounded(StopForced{});
      clock_.Await(&mu_, &changed_, has_stopped, absl::InfiniteFuture());
    }
  }
  {
    MutexLock lock(&mu_);
    EndComms(absl::CancelledError("this worker has left the job"));
    for (const ViewPtr& view : {view_, next_})
      if (view != nullptr) view->plane->executor->LeaveComms();
  }
  TearDown();
  MutexLock lock(&mu_);
  if (status_.ok()) status_ = absl::CancelledError("this worker has left the job");
  ending_.End(result);
  changed_.NotifyAll();
  return result;
}

void WorkerImpl::TearDown() {
  Runtime& r = *runtime_;
  r.inbox.Close();
  if (r.control != nullptr) {
    r.control->Join();
    r.control->plane()->Stop();
    r.gpus.TakeKept();  // which ends it
  }
  if (r.control != nullptr) r.control->FailRest(absl::CancelledError("this worker was shut down"));
  if (r.completion != nullptr) r.completion->Stop();
  if (const absl::Status timeline = StopTimeline(); !timeline.ok())
    COORDD_LOG(kWarning, timeline.message());
  {
    // What it has forwarded has ended; the rest fails. Whoever submits now finds it closed.
    MutexLock lock(&r.stager_mu);
    r.stager_ended = true;
    if (r.stager != nullptr) r.stager->Stop();
  }
  r.http.reset();
}

}  // namespace coordd
