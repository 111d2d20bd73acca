#include "worker/worker_impl.h"

#include <prometheus/registry.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/host_identity.h"
#include "common/http_server.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/store_memory.h"
#include "worker/completion.h"
#include "worker/executor.h"
#include "worker/join_message.h"
#include "worker/pending_names.h"
#include "worker/submission_check.h"
#include "worker/worker_metrics.h"

namespace coordd {
namespace {

// For what is left when the goodbye has no time: an abort of the data plane.
constexpr absl::Duration kDestructorTimeout = absl::Seconds(5);
// Keys of programs, apart from those of the runtime's generations.
constexpr char kProgramPrefix[] = "program/";

}  // namespace

// Members end in the reverse order: the link last but one, so that nothing speaks into an inbox
// that has gone.
struct WorkerImpl::Runtime {
  Runtime(WorkerSeams seams, Clock& clock)
      : seams(std::move(seams)),
        metrics(registry),
        program_store(kProgramPrefix, *this->seams.store),
        inbox(kMaxSubmissions, clock) {}

  WorkerSeams seams;
  prometheus::Registry registry;
  WorkerMetrics metrics;
  PrefixStore program_store;
  PendingNames names;
  ControlInbox inbox;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<PrefixStore> generation_store;
  std::unique_ptr<CoordinatorLink> link;
  std::unique_ptr<Completion> completion;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Control> control;
};

absl::StatusOr<std::unique_ptr<Worker>> StartWorker(const WorkerOptions& options, WorkerSeams seams,
                                                    Clock& clock) {
  auto worker = std::make_unique<WorkerImpl>(options, std::move(seams), clock);
  COORDD_RETURN_IF_ERROR(worker->Start());
  return worker;
}

WorkerImpl::WorkerImpl(WorkerOptions options, WorkerSeams seams, Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      runtime_(std::make_unique<Runtime>(std::move(seams), clock)) {}

WorkerImpl::~WorkerImpl() {
  if (fork_guard_.InChild()) {
    static_cast<void>(runtime_.release());
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
  COORDD_ASSIGN_OR_RETURN(JoinedSession session, JoinSession(request, runtime_->seams.make_link,
                                                             runtime_->inbox, clock_, random));
  return StartRuntime(std::move(session));
}

absl::Status WorkerImpl::StartMetrics() {
  if (!options_.metrics.has_value()) return absl::OkStatus();
  prometheus::Registry& registry = runtime_->registry;
  COORDD_ASSIGN_OR_RETURN(
      runtime_->http,
      HttpServer::Start(
          *options_.metrics,
          {{"/metrics",
            [&registry](const std::string&) {
              return HttpResponse{200, "text/plain; version=0.0.4; charset=utf-8",
                                  MetricsText(registry)};
            }},
           {"/healthz", [this](const std::string&) {
              const absl::Status alive = status();
              if (alive.ok()) return HttpResponse{200, "text/plain", "ok\n"};
              return HttpResponse{503, "text/plain", absl::StrCat(alive.message(), "\n")};
            }}}));
  metrics_address_ = AnnouncedAddress(runtime_->http->address(), options_.coordinator).ToString();
  return absl::OkStatus();
}

absl::Status WorkerImpl::StartRuntime(JoinedSession session) {
  Runtime& r = *runtime_;
  r.link = std::move(session.link);
  COORDD_ASSIGN_OR_RETURN(const MemberPlace place, ParseMembership(session.membership));
  placement_ = place.placement;
  r.metrics.SetPlacement(placement_.generation, placement_.rank, placement_.size);
  r.generation_store = std::make_unique<PrefixStore>(place.store_prefix, *r.seams.store);
  COORDD_ASSIGN_OR_RETURN(std::unique_ptr<CollectiveBackend> backend,
                          r.seams.make_backend(place.layout));

  const int32_t cores = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  r.completion = std::make_unique<Completion>(
      std::string(backend->name()), r.names, r.metrics, clock_,
      CompletionHooks{[&r](int buffer) { r.executor->ReturnFusionBuffer(buffer); },
                      [&r](BatchDone done) { r.inbox.PushUnbounded(std::move(done)); }});
  r.executor = std::make_unique<Executor>(
      ExecutorOptions{options_.fusion_buffer_bytes, placement_.local_size, cores},
      std::move(backend), clock_,
      [&r](std::unique_ptr<BatchJob> batch) { r.completion->Finish(std::move(batch)); });
  r.control = std::make_unique<Control>(
      place.state, Control::Parts{r.inbox, *r.link, *r.executor, *r.completion, r.metrics, clock_},
      ControlHooks{[this](absl::Status status) { SetStatus(std::move(status)); },
                   [this] {
                     MutexLock lock(&mu_);
                     stopped_ = true;
                     changed_.NotifyAll();
                   }});
  // Control first: the lease must not run out while the data plane connects.
  r.completion->Start();
  r.control->Start(std::move(session.early));
  const absl::Status connected =
      r.executor->Start(place.layout, *r.generation_store, clock_.Now() + options_.connect_timeout);
  if (connected.ok()) return absl::OkStatus();
  const absl::Status ended = status();  // if the generation has ended, that is why
  const absl::Status& why = ended.ok() ? connected : ended;
  return absl::Status(why.code(), absl::StrCat("the data plane of rank ", placement_.rank,
                                               " could not be connected: ", why.message()));
}

absl::Status WorkerImpl::status() const {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  MutexLock lock(&mu_);
  return status_;
}

absl::Status WorkerImpl::AwaitEnd(absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  MutexLock lock(&mu_);
  auto has_ended = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !status_.ok(); };
  clock_.Await(&mu_, &changed_, has_ended, deadline);
  return status_;
}

void WorkerImpl::SetStatus(absl::Status status) {
  MutexLock lock(&mu_);
  status_ = std::move(status);
  changed_.NotifyAll();
}

const WorkerMetrics& WorkerImpl::metrics() const { return runtime_->metrics; }

Store& WorkerImpl::store() { return runtime_->program_store; }

absl::Time WorkerImpl::DeadlineOf(const Submission& submission) const {
  const bool own = submission.timeout > absl::ZeroDuration();
  return clock_.Now() + (own ? submission.timeout : options_.collective_timeout);
}

absl::StatusOr<std::shared_ptr<Work>> WorkerImpl::Submit(Submission submission) {
  COORDD_RETURN_IF_ERROR(status());
  const absl::Time deadline = DeadlineOf(submission);
  submission.spec.group.clear();
  submission.spec.group_size = 0;
  COORDD_ASSIGN_OR_RETURN(
      TensorJob job, CheckSubmission(std::move(submission), placement_.size, deadline, clock_));
  std::vector<TensorJob> jobs;
  jobs.push_back(std::move(job));
  COORDD_ASSIGN_OR_RETURN(auto works, Enqueue(std::move(jobs), deadline));
  return std::move(works.front());
}

absl::StatusOr<std::vector<std::shared_ptr<Work>>> WorkerImpl::SubmitGroup(
    const std::string& name, std::vector<Submission> submissions) {
  COORDD_RETURN_IF_ERROR(status());
  if (name.empty()) return absl::InvalidArgumentError("a group without a name, expected one");
  std::vector<TensorJob> jobs;
  absl::Time earliest = absl::InfiniteFuture();
  const int32_t count = static_cast<int32_t>(
      std::min<size_t>(submissions.size(), static_cast<size_t>(kMaxGroupSize) + 1));
  for (Submission& submission : submissions) {
    submission.spec.group = name;
    submission.spec.group_size = count;
    const absl::Time deadline = DeadlineOf(submission);
    earliest = std::min(earliest, deadline);
    COORDD_ASSIGN_OR_RETURN(
        TensorJob job, CheckSubmission(std::move(submission), placement_.size, deadline, clock_));
    jobs.push_back(std::move(job));
  }
  if (jobs.empty()) return std::vector<std::shared_ptr<Work>>{};
  return Enqueue(std::move(jobs), earliest);
}

absl::StatusOr<std::vector<std::shared_ptr<Work>>> WorkerImpl::Enqueue(std::vector<TensorJob> jobs,
                                                                       absl::Time deadline) {
  std::vector<std::shared_ptr<Work>> works;
  absl::Status refused;
  for (const TensorJob& job : jobs) {
    refused = runtime_->names.Insert(job.spec().name);
    if (!refused.ok()) break;
    works.push_back(job.work);
  }
  if (refused.ok()) {
    // Full: the caller waits here, which is what slows a program down that submits faster than the
    // worker reports.
    if (runtime_->inbox.Push(JobsSubmitted{std::move(jobs)}, deadline)) return works;
    refused = status();
    if (refused.ok())
      refused = absl::ResourceExhaustedError(
          absl::StrCat("tensor ", works.front()->spec().name, ": the submission queue of ",
                       kMaxSubmissions, " stayed full until its deadline"));
  }
  for (const auto& work : works) runtime_->names.Erase(work->spec().name);
  return refused;
}

absl::Status WorkerImpl::Shutdown(absl::Duration timeout) {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  const absl::Time deadline = clock_.Now() + timeout;
  {
    MutexLock lock(&mu_);
    if (shutting_down_) {
      while (!shut_down_) changed_.Wait(&mu_);
      return shutdown_status_;
    }
    shutting_down_ = true;
  }
  absl::Status result;
  if (runtime_->control != nullptr) {
    runtime_->inbox.PushUnbounded(LeaveRequested{});
    MutexLock lock(&mu_);
    auto has_stopped = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stopped_; };
    if (!clock_.Await(&mu_, &changed_, has_stopped, deadline)) {
      result = absl::DeadlineExceededError(
          absl::StrCat("the worker was stopped by force: its collectives had not ended, or coordd "
                       "had not answered, within ",
                       absl::FormatDuration(timeout)));
      runtime_->inbox.PushUnbounded(StopForced{});
      clock_.Await(&mu_, &changed_, has_stopped, absl::InfiniteFuture());
    }
  }
  TearDown();
  MutexLock lock(&mu_);
  if (status_.ok()) status_ = absl::CancelledError("this worker has left the job");
  shut_down_ = true;
  shutdown_status_ = result;
  changed_.NotifyAll();
  return result;
}

void WorkerImpl::TearDown() {
  Runtime& r = *runtime_;
  r.inbox.Close();
  if (r.control != nullptr) r.control->Join();
  if (r.executor != nullptr) r.executor->Stop();
  if (r.control != nullptr) r.control->FailRest(absl::CancelledError("this worker was shut down"));
  if (r.completion != nullptr) r.completion->Stop();
  r.link.reset();
  r.http.reset();
}

}  // namespace coordd
