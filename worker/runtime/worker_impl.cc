#include "worker/runtime/worker_impl.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/launch/host_identity.h"
#include "common/net/own_address.h"
#include "worker/execute/worker_errors.h"
#include "worker/interfaces/peer_status.h"
#include "worker/protocol/join_message.h"
#include "worker/runtime/comm_maker.h"
#include "worker/runtime/worker_runtime.h"

namespace coordd {
namespace {

// For what is left when the goodbye has no time: an abort of the data plane.
constexpr absl::Duration kDestructorTimeout = absl::Seconds(5);
// Whoever has joined waits for what the others still have to do, the rest of an epoch perhaps. That
// they are silent, or gone, ends the join long before this does.
constexpr absl::Duration kJoinTimeout = absl::Hours(7 * 24);
constexpr size_t kMaxNameBytes = 256;  // of a comm

}  // namespace

absl::StatusOr<std::unique_ptr<Worker>> StartWorker(const WorkerOptions& options, WorkerSeams seams,
                                                    Clock& clock) {
  auto worker = std::make_unique<WorkerImpl>(options, std::move(seams), clock);
  COORDD_RETURN_IF_ERROR(worker->Start());
  return worker;
}

WorkerImpl::WorkerImpl(WorkerOptions options, WorkerSeams seams, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      runtime_(std::make_unique<Runtime>(std::move(seams), clock, options_.stack)) {}

WorkerImpl::~WorkerImpl() {
  if (fork_guard_.InChild()) {
    static_cast<void>(runtime_.release());
    static_cast<void>(memory_.release());
    return;
  }
  Shutdown(kDestructorTimeout).IgnoreError();
}

absl::Status WorkerImpl::Start() {
  COORDD_RETURN_IF_ERROR(StartMetrics());
  Random random = Random::FromSystem();
  JoinRequest request;
  request.join = MakeJoin(options_, ThisHost(options_.node_id), metrics_address_, getpid(), random);
  request.coordinator = options_.coordinator.ToString();
  request.deadline = clock_.Now() + options_.join_timeout;
  request.probe = runtime_->seams.probe_coordinator;
  COORDD_ASSIGN_OR_RETURN(JoinedSession session, JoinSession(request, runtime_->seams.make_link,
                                                             runtime_->inbox, clock_, random));
  return StartRuntime(std::move(request.join), std::move(session));
}

absl::Status WorkerImpl::StartMetrics() {
  if (!options_.metrics.has_value()) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(
      runtime_->http,
      HttpServer::Start(
          MetricsAddress(*options_.metrics, options_.coordinator), options_.ports,
          {{"/metrics",
            [&r = *runtime_](const std::string&) {
              return HttpResponse{200, "text/plain; version=0.0.4; charset=utf-8",
                                  MetricsText(r.registry, r.metrics, *r.seams.connections_refused)};
            }},
           {"/healthz", [this](const std::string&) {
              const absl::Status alive = status();
              if (alive.ok()) return HttpResponse{200, "text/plain", "ok\n"};
              return HttpResponse{503, "text/plain", absl::StrCat(alive.message(), "\n")};
            }}}));
  metrics_address_ = AnnouncedAddress(runtime_->http->address(), options_.coordinator).ToString();
  return absl::OkStatus();
}

absl::Status WorkerImpl::StartRuntime(v1::Join join, JoinedSession session) {
  Runtime& r = *runtime_;
  COORDD_ASSIGN_OR_RETURN(MemberPlace place,
                          ParseMembership(session.membership, session.process_sets));
  last_process_set_found_ = ProcessSetId{session.process_sets.last_process_set()};
  place.state.join = std::move(join);
  place.state.resume_timeout = options_.resume_timeout;
  place.state.coordinators = 1 + static_cast<int32_t>(options_.further_coordinators.size());
  place.state.on_failure = options_.on_failure;
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<GenerationPlane> plane,
                          MakeDataPlane(session.membership));
  std::function<void(std::unique_ptr<BatchJob>, BatchDone)> interrupted;
  if (options_.on_failure == OnFailure::kContinue)
    interrupted = [&r](std::unique_ptr<BatchJob> batch, BatchDone done) {
      r.control->BatchInterrupted(std::move(batch), std::move(done));
    };
  r.completion = std::make_unique<Completion>(
      plane->executor->backend_name(), r.names, r.metrics, r.trace, clock_,
      CompletionHooks{[&r](LaneId lane, ScratchLoan loan) {
                        r.control->plane()->executor->ReturnScratch(lane, loan);
                      },
                      [&r](BatchDone done) { r.control->BatchEnded(std::move(done)); },
                      std::move(interrupted)});
  r.control = std::make_unique<Control>(
      place.state,
      Control::Needs{r.inbox, *r.completion, r.process_sets, r.metrics, r.trace, clock_, r.stacks,
                     r.gpu_watch, *r.comm_calls},
      Control::Stream{std::move(session.link), r.seams.make_link}, std::move(plane),
      ControlHooks{
          [this](const GenerationEnded& ended) { OnGenerationEnded(ended); },
          [this](const v1::CoordinatorMessage& membership) { return MakeDataPlane(membership); },
          [this] { OnGenerationInterrupted(); },
          [this](int32_t count) { newcomers_.store(count, std::memory_order_relaxed); },
          [this](absl::Time until) { drain_until_ns_.store(absl::ToUnixNanos(until)); },
          [&r] { return r.seams.store_record->Report(); },
          [this] { OnEndingGoesOn(&WorkerEnding::NoteWorkFinished); },
          [this] { OnEndingGoesOn(&WorkerEnding::NoteStopped); },
          place.placement.local_rank == 0 ? r.seams.coordinator_away : nullptr});
  // Control first: the lease must not run out while the data plane connects.
  r.completion->Start();
  r.control->Start(std::move(session.early));
  COORDD_RETURN_IF_ERROR(AwaitFirstGeneration(ToInt(place.state.rank)));
  BeginWithTimeline();
  return absl::OkStatus();
}

// Nobody's training should fail for want of its timeline.
void WorkerImpl::BeginWithTimeline() {
  if (options_.timeline.empty()) return;
  const absl::Status started = StartTimeline(options_.timeline, options_.timeline_mark_steps);
  if (!started.ok()) COORDD_LOG(kWarning, started.message());
}

absl::Status WorkerImpl::StartTimeline(const std::string& path, bool mark_steps) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  const int32_t rank = view->placement.rank;
  if (path.empty()) return absl::InvalidArgumentError("a timeline without a path, expected one");
  Runtime& r = *runtime_;
  MutexLock lock(&r.timeline_mu);
  if (r.timeline != nullptr) {
    return absl::FailedPreconditionError(
        "a timeline is being written already: stop that one first");
  }
  const std::string own = TimelinePath(path, rank);
  if (own.empty()) return absl::OkStatus();
  TimelineOptions options{own, rank, absl::StrCat("rank ", rank),
                          r.control->plane()->executor->backend_name(), mark_steps};
  COORDD_ASSIGN_OR_RETURN(r.timeline, TimelineFile::Start(std::move(options), r.trace, clock_));
  return absl::OkStatus();
}

absl::Status WorkerImpl::StopTimeline() {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  MutexLock lock(&runtime_->timeline_mu);
  const std::unique_ptr<TimelineFile> ended = std::move(runtime_->timeline);
  return ended == nullptr ? absl::OkStatus() : ended->Stop();
}

absl::Status WorkerImpl::status() const { return CurrentView().status(); }

absl::Status WorkerImpl::AwaitEnd(absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  MutexLock lock(&mu_);
  auto has_ended = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !status_.ok(); };
  clock_.Await(&mu_, &changed_, has_ended, deadline);
  return status_;
}

const WorkerMetrics& WorkerImpl::metrics() const { return runtime_->metrics; }

Store& WorkerImpl::store() { return runtime_->program_store; }

absl::Time WorkerImpl::DeadlineOf(absl::Duration timeout, absl::Time now) const {
  const bool own = timeout > absl::ZeroDuration();
  return now + (own ? timeout : options_.collective_timeout);
}

absl::StatusOr<SubmissionPlace> WorkerImpl::PlaceIn(const View& view,
                                                    ProcessSetId process_set) const {
  SubmissionPlace place{view.placement.rank, view.placement.size, nullptr};
  if (ToInt(process_set) == 0) return place;
  place.set = runtime_->process_sets.Find(process_set);
  if (place.set != nullptr) return place;
  return runtime_->process_sets.NoSuchSet(process_set);
}

absl::StatusOr<TensorJob> WorkerImpl::Check(const View& view, Submission submission,
                                            absl::Time now) const {
  const bool patient =
      submission.spec.kind == CollectiveKind::kJoin && submission.timeout <= absl::ZeroDuration();
  const absl::Time deadline = DeadlineOf(patient ? kJoinTimeout : submission.timeout, now);
  submission.spec.group.clear();
  submission.spec.group_size = 0;
  const absl::StatusOr<SubmissionPlace> place = PlaceIn(view, submission.spec.process_set);
  if (!place.ok()) return ForTensor(submission.spec.name, place.status());
  COORDD_ASSIGN_OR_RETURN(TensorJob job, CheckSubmission(std::move(submission), *place, deadline,
                                                         clock_, view.plane->executor->seat()));
  job.generation = view.placement.generation;
  return job;
}

absl::StatusOr<std::shared_ptr<Work>> WorkerImpl::Submit(Submission submission) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  const absl::Time now = clock_.Now();
  COORDD_ASSIGN_OR_RETURN(TensorJob job, Check(*view, std::move(submission), now));
  std::shared_ptr<Work> work = job.work;
  std::vector<TensorJob> jobs;
  jobs.push_back(std::move(job));
  COORDD_RETURN_IF_ERROR(Enqueue(*view, std::move(jobs), now));
  return work;
}

absl::StatusOr<std::shared_ptr<Work>> WorkerImpl::SubmitAndWait(Submission submission,
                                                                absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  const absl::Time now = clock_.Now();
  COORDD_ASSIGN_OR_RETURN(TensorJob job, Check(*view, std::move(submission), now));
  const std::shared_ptr<Work> work = job.work;
  // Before it is submitted: a batch that is ready at once is then left to this thread.
  const Work::Waiter waiter(*work);
  std::vector<TensorJob> jobs;
  jobs.push_back(std::move(job));
  COORDD_RETURN_IF_ERROR(Enqueue(*view, std::move(jobs), now));
  work->Wait(deadline).IgnoreError();  // the caller asks for it
  return work;
}

absl::StatusOr<std::vector<std::shared_ptr<Work>>> Worker::SubmitGroup(
    const std::string& name, std::vector<Submission> submissions) {
  std::vector<TensorSpec> specs;
  std::vector<TensorBuffers> buffers;
  const absl::Duration timeout =
      submissions.empty() ? absl::ZeroDuration() : submissions.front().timeout;
  for (Submission& submission : submissions) {
    specs.push_back(std::move(submission.spec));
    buffers.push_back(std::move(submission));
  }
  PreparedGroup group(name, std::move(specs));
  return SubmitGroup(group, std::move(buffers), timeout);
}

absl::Status WorkerImpl::CheckGroup(const PreparedGroup& group,
                                    const SubmissionPlace& place) const {
  const ProcessSetId process_set = group.specs().front()->process_set;
  for (const SharedSpec& spec : group.specs()) {
    if (spec->process_set != process_set) {
      return absl::InvalidArgumentError(
          absl::StrCat("group ", group.name(), ": tensors of process sets ", ToInt(process_set),
                       " and ", ToInt(spec->process_set), ", expected one set"));
    }
    COORDD_RETURN_IF_ERROR(CheckSpec(*spec, place));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::shared_ptr<Work>>> WorkerImpl::SubmitGroup(
    PreparedGroup& group, std::vector<TensorBuffers> buffers, absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  const std::vector<SharedSpec>& specs = group.specs();
  if (group.name().empty())
    return absl::InvalidArgumentError("a group without a name, expected one");
  if (buffers.size() != specs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("group ", group.name(), ": buffers of ",
                                                   buffers.size(), " tensors, expected ",
                                                   specs.size()));
  }
  if (specs.empty()) return std::vector<std::shared_ptr<Work>>{};
  COORDD_ASSIGN_OR_RETURN(const SubmissionPlace place, PlaceIn(*view, specs.front()->process_set));
  const Generation generation = view->placement.generation;
  if (!group.IsGoodIn(generation)) {
    COORDD_RETURN_IF_ERROR(CheckGroup(group, place));
    group.SetGoodIn(generation);
  }
  const absl::Time now = clock_.Now();
  const absl::Time deadline = DeadlineOf(timeout, now);
  std::vector<TensorJob> jobs;
  jobs.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    COORDD_ASSIGN_OR_RETURN(TensorJob job, MakeJob(specs[i], std::move(buffers[i]), place, deadline,
                                                   clock_, view->plane->executor->seat()));
    job.generation = generation;
    jobs.push_back(std::move(job));
  }
  std::vector<std::shared_ptr<Work>> works;
  works.reserve(jobs.size());
  for (const TensorJob& job : jobs) works.push_back(job.work);
  COORDD_RETURN_IF_ERROR(Enqueue(*view, std::move(jobs), now));
  return works;
}

absl::Status WorkerImpl::Enqueue(const View& view, std::vector<TensorJob> jobs, absl::Time now) {
  const auto on_device =
      std::find_if(jobs.begin(), jobs.end(), [](const TensorJob& job) { return job.device >= 0; });
  if (on_device != jobs.end() && options_.on_failure == OnFailure::kContinue) {
    return ForTensor(
        on_device->spec().name,
        absl::UnimplementedError("is on a device, whose memory cannot be kept for another "
                                 "try: on_failure continue is for host memory, raise for "
                                 "all"));
  }
  DeviceStager* stager = nullptr;
  if (on_device != jobs.end()) {
    COORDD_ASSIGN_OR_RETURN(const bool captured, Capture(view, jobs));
    if (captured) return absl::OkStatus();
    COORDD_RETURN_IF_ERROR(Admit(view, jobs));
    if (std::any_of(jobs.begin(), jobs.end(),
                    [](const TensorJob& job) { return job.device >= 0 && !job.direct; })) {
      const absl::StatusOr<DeviceStager*> made = Stager();
      if (!made.ok()) return ForTensor(on_device->spec().name, made.status());
      stager = *made;
    }
  }
  COORDD_RETURN_IF_ERROR(runtime_->names.Insert(jobs));
  std::vector<std::shared_ptr<Work>> staged;
  if (stager != nullptr)
    for (const TensorJob& job : jobs) staged.push_back(job.work);
  const absl::Status taken =
      stager != nullptr ? stager->Stage(std::move(jobs)) : Forward(jobs, now);
  if (taken.ok()) return taken;
  for (const auto& work : staged) runtime_->names.Erase(work->spec());
  // They are here still: only a stager has taken them.
  if (stager == nullptr) runtime_->names.Erase(jobs);  // NOLINT(bugprone-use-after-move)
  return taken;
}

absl::StatusOr<bool> WorkerImpl::Capture(const View& view, std::vector<TensorJob>& jobs) {
  size_t failed = 0;
  absl::StatusOr<bool> captured =
      view.plane->devices->graphs().Capture(absl::MakeSpan(jobs), &failed);
  if (!captured.ok()) return ForTensor(jobs[failed].spec().name, captured.status());
  return captured;
}

absl::Status WorkerImpl::PrepareGraphs(ProcessSetId process_set, int32_t device,
                                       absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  if (options_.on_failure == OnFailure::kContinue) {
    return absl::UnimplementedError(
        "graphs are of memory of a device: on_failure continue is for host memory, raise for all");
  }
  COORDD_RETURN_IF_ERROR(PlaceIn(*view, process_set).status());
  return VerdictOn(*view->plane, view->plane->devices->graphs().Prepare(
                                     process_set, device, DeadlineOf(timeout, clock_.Now())));
}

absl::Status WorkerImpl::CheckGraphs(ProcessSetId process_set, absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  COORDD_RETURN_IF_ERROR(PlaceIn(*view, process_set).status());
  return VerdictOn(*view->plane, view->plane->devices->graphs().Check(
                                     process_set, DeadlineOf(timeout, clock_.Now())));
}

absl::Status WorkerImpl::Admit(const View& view, std::vector<TensorJob>& jobs) {
  size_t failed = 0;
  const absl::Status admitted = view.plane->devices->Admit(absl::MakeSpan(jobs), &failed);
  if (!admitted.ok()) return ForTensor(jobs[failed].spec().name, admitted);
  for (const TensorJob& job : jobs) {
    if (!job.direct) continue;
    job.work->DriveBy(
        [plane = std::weak_ptr<GenerationPlane>(view.plane)](const Work& work, absl::Time) {
          if (const auto alive = plane.lock()) alive->devices->DriveFor(work);
        });
    // Whoever has been told of the end may go on with what the device holds back.
    job.work->CallWhenTold([plane = std::weak_ptr<GenerationPlane>(view.plane)] {
      if (const auto alive = plane.lock()) alive->devices->Told();
    });
  }
  return absl::OkStatus();
}

absl::Status WorkerImpl::Forward(std::vector<TensorJob>& jobs, absl::Time now) {
  if (runtime_->control->Submit(jobs, now)) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(status());
  return absl::CancelledError("this worker has left the job");
}

absl::StatusOr<DeviceStager*> WorkerImpl::Stager() {
  Runtime& r = *runtime_;
  MutexLock lock(&r.stager_mu);
  if (r.stager_ended) return absl::CancelledError("this worker has left the job");
  if (r.stager != nullptr) return r.stager.get();
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<DeviceRuntime> devices, r.gpus.Devices());
  r.stager = std::make_unique<DeviceStager>(
      std::move(devices), clock_,
      [this](std::vector<TensorJob>& jobs) { return Forward(jobs, clock_.Now()); },
      [&r](const std::vector<TensorJob>& jobs) { r.names.Erase(jobs); });
  return r.stager.get();
}

absl::StatusOr<ProcessSetId> WorkerImpl::AskForProcessSet(ProcessSetAsked asked) {
  COORDD_RETURN_IF_ERROR(status());
  auto reply = std::make_shared<ProcessSetReply>();
  const absl::Time deadline = asked.deadline;
  ProcessSetCall call{std::move(asked), reply};
  if (runtime_->inbox.Push(ControlEvent(std::move(call)), deadline)) return reply->Await();
  COORDD_RETURN_IF_ERROR(status());
  return absl::ResourceExhaustedError("the queue of calls stayed full until the deadline");
}

absl::StatusOr<ProcessSetId> WorkerImpl::AskForNewSet(const std::string& name,
                                                      std::vector<int32_t> ranks,
                                                      absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  std::sort(ranks.begin(), ranks.end());
  COORDD_RETURN_IF_ERROR(CheckNewSet(name, ranks, view->placement));
  return AskForProcessSet({0, ProcessSetId{}, std::move(ranks), DeadlineOf(timeout, clock_.Now()),
                           view->placement.generation, name});
}

absl::StatusOr<ProcessSetId> WorkerImpl::AddProcessSet(std::vector<int32_t> ranks,
                                                       absl::Duration timeout) {
  return AskForNewSet("", std::move(ranks), timeout);
}

absl::StatusOr<ProcessSetId> WorkerImpl::AddNamedProcessSet(const std::string& name,
                                                            std::vector<int32_t> ranks,
                                                            absl::Duration timeout) {
  COORDD_RETURN_IF_ERROR(CheckSetName(name));
  return AskForNewSet(name, std::move(ranks), timeout);
}

absl::Status WorkerImpl::RemoveProcessSet(ProcessSetId process_set, absl::Duration timeout) {
  if (ToInt(process_set) == 0)
    return absl::InvalidArgumentError("process set 0: is that of all ranks and stays");
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  COORDD_RETURN_IF_ERROR(PlaceIn(*view, process_set).status());
  return AskForProcessSet(
             {0, process_set, {}, DeadlineOf(timeout, clock_.Now()), view->placement.generation})
      .status();
}

absl::StatusOr<std::vector<int32_t>> WorkerImpl::ProcessSetRanks(ProcessSetId process_set) const {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  ViewPtr view;
  {
    MutexLock lock(&mu_);
    view = view_;
  }
  COORDD_ASSIGN_OR_RETURN(const SubmissionPlace place, PlaceIn(*view, process_set));
  if (place.set != nullptr) return *place.set;
  std::vector<int32_t> all(static_cast<size_t>(view->placement.size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<ProcessSetId> WorkerImpl::ProcessSets() const {
  return runtime_->process_sets.Numbers();
}

absl::StatusOr<std::unique_ptr<Comm>> WorkerImpl::CreateComm(ProcessSetId process_set,
                                                             const std::string& name,
                                                             absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const ViewPtr view, CurrentView());
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a comm whose name has ", name.size(),
                                                   " bytes, expected 1 to ", kMaxNameBytes));
  }
  if (options_.on_failure == OnFailure::kContinue) {
    return absl::UnimplementedError(
        absl::StrCat("comm ", name, ": its calls cannot be repeated with on_failure continue; ",
                     "expected end or raise"));
  }
  BareComm::Needs parts;
  parts.name = name;
  parts.process_set = process_set;
  parts.plane = view->plane;
  parts.generation = view->placement.generation;
  COORDD_ASSIGN_OR_RETURN(parts.ranks, ProcessSetRanks(process_set));
  const auto self = std::find(parts.ranks.begin(), parts.ranks.end(), view->placement.rank);
  if (self == parts.ranks.end()) {
    return absl::InvalidArgumentError(absl::StrCat("comm ", name, ": rank ", view->placement.rank,
                                                   " is not in process set ", ToInt(process_set)));
  }
  parts.self = static_cast<int32_t>(self - parts.ranks.begin());
  parts.timeout = timeout > absl::ZeroDuration() ? timeout : options_.collective_timeout;
  parts.polling_threads = view->placement.local_size;
  parts.cores = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  parts.metrics = &runtime_->metrics;
  parts.calls = runtime_->comm_calls;
  parts.clock = &clock_;
  parts.report_failure = [this, of = parts.generation](const absl::Status& why) {
    runtime_->inbox.PushUnbounded(ConnectFailed{of, why, SuspectOf(why), /*was_connected=*/true});
  };
  return MakeComm(*this, process_set, std::move(parts));
}

}  // namespace coordd
