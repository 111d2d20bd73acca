// The root object of a worker: makes the parts, connects them, takes them apart. (io)
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/protocol/store.h"
#include "worker/api/worker.h"
#include "worker/base/fork_guard.h"
#include "worker/coordinator/store_record.h"
#include "worker/gpu/plane/gpu_access.h"
#include "worker/runtime/generation_callbacks.h"
#include "worker/runtime/generation_plane.h"
#include "worker/runtime/join_session.h"
#include "worker/runtime/rank_memory.h"
#include "worker/runtime/submission_check.h"
#include "worker/runtime/worker_ending.h"

namespace coordd {

class DeviceStager;
class WorkerMetrics;

// What of a worker is replaced in tests. Worker::Start uses gRPC and the real backends.
struct WorkerSeams {
  LinkFactory make_link;
  std::function<absl::Status()> probe_coordinator;  // of JoinRequest; may be nullptr
  // Tells people, for all ranks of the node; may be nullptr. Must not block.
  std::function<void(const CoordinatorAway&)> coordinator_away = nullptr;
  std::unique_ptr<Store> store;
  std::shared_ptr<StoreRecord> store_record = std::make_shared<StoreRecord>();  // of `store`
  std::function<absl::StatusOr<std::unique_ptr<CollectiveBackend>>(const GroupLayout&)>
      make_backend;
  // Counts whom make_backend's backends have not believed.
  std::shared_ptr<std::atomic<int64_t>> connections_refused =
      std::make_shared<std::atomic<int64_t>>(0);
  // Called when the first tensor on a GPU is submitted, not before.
  GpuSeams gpus;
};

// Starts a worker as Worker::Start does.
absl::StatusOr<std::unique_ptr<Worker>> StartWorker(const WorkerOptions& options, WorkerSeams seams,
                                                    Clock& clock);

// Thread-safe, as Worker says. Threads: control, executor, completion, stager, timeline; those of
// gRPC and of the HTTP server.
class WorkerImpl final : public Worker {
 public:
  WorkerImpl(WorkerOptions options, WorkerSeams seams, Clock& clock);
  // In a forked child everything is left where it is: its threads are not there to be joined.
  ~WorkerImpl() override;

  // Once, before anything else.
  absl::Status Start();

  Placement placement() const override;
  std::string metrics_address() const override { return metrics_address_; }
  std::string host_address() const override;
  absl::Status status() const override;
  absl::Status AwaitEnd(absl::Time deadline) override;
  absl::StatusOr<Placement> AwaitGeneration(absl::Time deadline) override;
  int32_t newcomers() const override { return newcomers_.load(std::memory_order_relaxed); }
  absl::StatusOr<Placement> ChangeMembers(Generation agreed_in, absl::Time deadline) override;
  void OnGeneration(GenerationCallback entered) override;
  std::optional<absl::Duration> drain_left() const override;
  absl::Status AskToLeave(absl::Duration grace, const std::string& reason) override;
  absl::StatusOr<std::shared_ptr<Work>> Submit(Submission submission) override;
  absl::StatusOr<std::shared_ptr<Work>> SubmitAndWait(Submission submission,
                                                      absl::Time deadline) override;
  using Worker::SubmitGroup;
  absl::StatusOr<std::vector<std::shared_ptr<Work>>> SubmitGroup(PreparedGroup& group,
                                                                 std::vector<TensorBuffers> buffers,
                                                                 absl::Duration timeout) override;
  absl::StatusOr<ProcessSetId> AddProcessSet(std::vector<int32_t> ranks,
                                             absl::Duration timeout) override;
  absl::StatusOr<ProcessSetId> AddNamedProcessSet(const std::string& name,
                                                  std::vector<int32_t> ranks,
                                                  absl::Duration timeout) override;
  absl::Status RemoveProcessSet(ProcessSetId process_set, absl::Duration timeout) override;
  absl::StatusOr<std::vector<int32_t>> ProcessSetRanks(ProcessSetId process_set) const override;
  std::vector<ProcessSetId> ProcessSets() const override;
  ProcessSetId last_process_set_found() const override { return last_process_set_found_; }
  absl::StatusOr<std::unique_ptr<Comm>> CreateComm(ProcessSetId process_set,
                                                   const std::string& name,
                                                   absl::Duration timeout) override;
  absl::StatusOr<void*> AllocateMemory(int64_t size_bytes) override;
  absl::Status FreeMemory(void* memory) override;
  absl::StatusOr<void*> RegisterMemory(const FileRange& file, absl::Duration timeout) override;
  absl::Status UnregisterMemory(void* memory, absl::Duration timeout) override;
  absl::Status CheckMapped(const void* memory, int64_t size_bytes) const override;
  absl::Status RegisterDeviceMemory(const DeviceRange& range, absl::Duration timeout) override;
  absl::Status UnregisterDeviceMemory(ProcessSetId process_set, const void* memory,
                                      absl::Duration timeout) override;
  absl::Status PrepareGraphs(ProcessSetId process_set, int32_t device,
                             absl::Duration timeout) override;
  absl::Status CheckGraphs(ProcessSetId process_set, absl::Duration timeout) override;
  absl::Status StartTimeline(const std::string& path, bool mark_steps) override;
  absl::Status StopTimeline() override;
  Store& store() override;
  absl::Status Shutdown(absl::Duration timeout) override;
  absl::Status FinishWork(absl::Duration hold, absl::Duration timeout) override;
  absl::Status Fail(const std::string& failure, absl::Duration timeout) override;
  absl::Status FailByExit(int status, absl::Duration timeout) override;

  const WorkerMetrics& metrics() const;

 private:
  struct Runtime;  // everything with threads in it
  // A generation as callers know it. Never changes.
  struct View {
    Placement placement;
    std::shared_ptr<GenerationPlane> plane;
  };
  using ViewPtr = std::shared_ptr<const View>;

  absl::Status StartMetrics();
  absl::Status StartRuntime(v1::Join join, JoinedSession session);
  void BeginWithTimeline();
  absl::Status AwaitFirstGeneration(int32_t rank);
  // Makes the data plane of a generation, which then connects, and makes it the one to come.
  absl::StatusOr<std::shared_ptr<GenerationPlane>> MakeDataPlane(
      const v1::CoordinatorMessage& membership);
  void OnConnected(Generation generation, const absl::Status& status);
  void OnGenerationEnded(const GenerationEnded& ended);
  void OnGenerationInterrupted();
  // With kContinue: programs are in it from now on.
  void EnterNext() ABSL_LOCKS_EXCLUDED(mu_);
  // What callers submit to; or why there is nothing.
  absl::StatusOr<ViewPtr> CurrentView() const;
  absl::StatusOr<TensorJob> Check(const View& view, Submission submission, absl::Time now) const;
  absl::Status CheckGroup(const PreparedGroup& group, const SubmissionPlace& place) const;
  absl::Status Enqueue(const View& view, std::vector<TensorJob> jobs, absl::Time now);
  void MakeDevicePlane(Generation generation, const GroupLayout& layout, GenerationPlane& plane);
  // Whether they became a part of a graph that the program captures.
  absl::StatusOr<bool> Capture(const View& view, std::vector<TensorJob>& jobs);
  // What is on devices: checked, and marked for NCCL or for the stager.
  absl::Status Admit(const View& view, std::vector<TensorJob>& jobs);
  // To control; or why it takes no more.
  absl::Status Forward(std::vector<TensorJob>& jobs, absl::Time now);
  // What carries tensors of devices that NCCL does not; made when first needed.
  absl::StatusOr<DeviceStager*> Stager();
  // What `status`, of a call that others take part in, is if somebody is lost: how the generation
  // has ended, as all calls say it.
  absl::Status VerdictOn(GenerationPlane& plane, absl::Status status) const;
  absl::Time DeadlineOf(absl::Duration timeout, absl::Time now) const;
  // INVALID_ARGUMENT: there is no such process set.
  absl::StatusOr<SubmissionPlace> PlaceIn(const View& view, ProcessSetId process_set) const;
  absl::StatusOr<ProcessSetId> AskForProcessSet(ProcessSetAsked asked);
  // `name`: empty: of all ranks.
  absl::StatusOr<ProcessSetId> AskForNewSet(const std::string& name, std::vector<int32_t> ranks,
                                            absl::Duration timeout);
  // Comms of what callers know or will know end with this.
  void MakeMessages(const Placement& placement, GenerationPlane& plane);
  void EndComms(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // With that, and what follows it.
  void OnEndingGoesOn(void (WorkerEnding::*note)());
  absl::Status EndBy(LeaveRequested how, absl::Duration timeout);
  // Ends all threads; the goodbye is said or forced before.
  void TearDown();

  // Constant after construction.
  const WorkerOptions options_;
  const ForkGuard fork_guard_;
  Clock& clock_;

  // Constant after Start.
  std::string metrics_address_;
  ProcessSetId last_process_set_found_;
  std::unique_ptr<Runtime> runtime_;

  // Thread-safe by itself.
  std::atomic<int32_t> newcomers_ = 0;
  // Until when this rank may stay; that of InfiniteFuture: as long as it likes.
  std::atomic<int64_t> drain_until_ns_ = absl::ToUnixNanos(absl::InfiniteFuture());

  // Constant after construction; thread-safe by itself.
  std::unique_ptr<RankMemory> memory_ = std::make_unique<RankMemory>();

  // Guarded by mu_.
  mutable Mutex mu_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool ended_for_good_ ABSL_GUARDED_BY(mu_) = false;  // status_ says why
  ViewPtr view_ ABSL_GUARDED_BY(mu_);                 // that the program knows; nullptr: none yet
  ViewPtr next_ ABSL_GUARDED_BY(mu_);                 // that it does not know yet, and is alive
  bool next_connected_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status connect_status_ ABSL_GUARDED_BY(mu_);  // of next_
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;     // view_'s generation; another one follows
  GenerationCallbacks callbacks_ ABSL_GUARDED_BY(mu_);
  WorkerEnding ending_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
