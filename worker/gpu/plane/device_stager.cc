#include "worker/gpu/plane/device_stager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/protocol/tensor_spec.h"
#include "worker/base/exact_timers.h"
#include "worker/execute/worker_errors.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

// Copies that are waited for when the worker ends; what a hung stream still holds then stays.
constexpr absl::Duration kDrainLimit = absl::Seconds(5);

bool IsStaged(const TensorJob& job) {
  return job.spec().memory == MemoryKind::kCuda && !job.direct;
}

absl::StatusOr<bool> HasHappened(const std::optional<DeviceEvent>& event) {
  if (!event.has_value()) return true;
  return event->Happened();
}

}  // namespace

DeviceStager::DeviceStager(std::shared_ptr<DeviceRuntime> device, Clock& clock, Forward forward,
                           Forget forget)
    : device_(std::move(device)),
      clock_(clock),
      forward_(std::move(forward)),
      forget_(std::move(forget)),
      pool_(*device_),
      results_(std::make_shared<ResultMemory>(device_, ResultMemory::Frees::kAtOnce)),
      inbox_(kInboxCapacity, clock) {
  thread_ = StartThread("stager", [this] { Run(); });
}

DeviceStager::~DeviceStager() {
  Stop();
  results_->Close();
}

void DeviceStager::Stop() {
  inbox_.Close();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<DeviceStager::Streams*> DeviceStager::StreamsOf(int32_t device) {
  MutexLock lock(&mu_);
  const auto found = streams_.find(device);
  if (found != streams_.end()) return &found->second;
  COORDD_ASSIGN_OR_RETURN(DeviceStream out, DeviceStream::Create(*device_, device));
  COORDD_ASSIGN_OR_RETURN(DeviceStream back, DeviceStream::Create(*device_, device));
  return &streams_.emplace(device, Streams{std::move(out), std::move(back)}).first->second;
}

absl::Status DeviceStager::Stage(std::vector<TensorJob> jobs) {
  Outgoing outgoing;
  outgoing.deadline = absl::InfiniteFuture();
  for (TensorJob& job : jobs) {
    outgoing.deadline = std::min(outgoing.deadline, job.deadline);
    if (!IsStaged(job)) continue;
    const absl::Status begun = Begin(job, outgoing);
    if (begun.ok()) continue;
    // The copies of those before it end in memory that has to stay until then.
    outgoing.deadline = absl::InfinitePast();
    if (!outgoing.staged.empty()) inbox_.PushUnbounded(Input(std::move(outgoing)));
    return ForTensor(job.spec().name, begun);
  }
  outgoing.jobs = std::move(jobs);
  auto input = std::make_unique<Input>(std::move(outgoing));
  if (inbox_.PushUnbounded(std::move(*input))) return absl::OkStatus();
  // Its copies are on their way, and nobody is left who would see their end.
  static_cast<void>(input.release());
  return absl::CancelledError("this worker has left the job");
}

void DeviceStager::StageBatch(std::unique_ptr<BatchJob> batch, Back back) {
  Outgoing outgoing;
  outgoing.deadline = absl::InfiniteFuture();
  for (TensorJob& job : batch->tensors()) {
    if (job.absent || !job.direct) continue;
    job.direct = false;
    outgoing.deadline = std::min(outgoing.deadline, job.deadline);
    const std::string name = job.spec().name;
    const absl::Status begun = Begin(job, outgoing);
    if (!begun.ok() && batch->status.ok()) batch->status = ForTensor(name, begun);
  }
  outgoing.batch = std::move(batch);
  outgoing.back = std::move(back);
  auto input = std::make_unique<Input>(std::move(outgoing));
  if (inbox_.PushUnbounded(std::move(*input))) return;
  // As in Stage.
  Outgoing& late = std::get<Outgoing>(*input);
  late.batch->status = absl::CancelledError("this worker has left the job");
  late.back(std::move(late.batch));
  static_cast<void>(input.release());
}

absl::Status DeviceStager::Begin(TensorJob& job, Outgoing& outgoing) {
  const TensorSpec& spec = job.spec();
  auto staged = std::make_shared<Staged>();
  staged->device = job.device;
  staged->output = job.output;
  staged->output_capacity_bytes = job.output_capacity_bytes;
  staged->has_capacity = HasRows(spec.kind);
  const int64_t bytes = HasPayload(spec.kind) ? SizeBytes(spec) : 0;
  if (bytes > 0) COORDD_RETURN_IF_ERROR(CopyOut(job, *staged, bytes));
  // From here on the data plane works with the pinned memory, and with a Work of ours.
  std::byte* const pinned = staged->pinned.has_value() ? staged->pinned->data() : nullptr;
  if (job.input != nullptr) job.input = pinned;
  // In place, where that is allowed. Else the result is made by the data plane.
  if (job.output != nullptr) job.output = staged->has_capacity ? nullptr : pinned;
  staged->work = std::exchange(job.work, std::make_shared<Work>(job.shared_spec(), clock_));
  job.work->OnComplete([this, staged, work = std::weak_ptr<Work>(job.work)](absl::Status status) {
    inbox_.PushUnbounded(Input(Ended{staged, work.lock(), std::move(status)}));
  });
  outgoing.staged.push_back(std::move(staged));
  return absl::OkStatus();
}

absl::Status DeviceStager::CopyOut(const TensorJob& job, Staged& staged, int64_t bytes) {
  COORDD_ASSIGN_OR_RETURN(Streams* const streams, StreamsOf(job.device));
  COORDD_ASSIGN_OR_RETURN(DeviceMemory pinned, pool_.Take(job.device, bytes));
  COORDD_ASSIGN_OR_RETURN(DeviceEvent copied, DeviceEvent::Create(*device_, job.device));
  staged.ready = job.ready;
  MutexLock lock(&mu_);  // a stream is one thread's at a time
  if (job.input != nullptr) {
    COORDD_RETURN_IF_ERROR(streams->out.Wait(staged.ready->get()));
    COORDD_RETURN_IF_ERROR(
        CopyAsync(*device_, job.device, pinned.data(), job.input, bytes, streams->out.get()));
    COORDD_RETURN_IF_ERROR(copied.Record(streams->out.get()));
    staged.copied.emplace(std::move(copied));
  }
  staged.pinned.emplace(std::move(pinned));
  return absl::OkStatus();
}

void DeviceStager::Run() {
  UseExactTimers();
  device_->OwnThisThread();
  IdleWait idle(1, 1);
  bool moved = true;
  absl::Time drained_by = absl::InfiniteFuture();
  while (true) {
    const bool under_way = !outgoing_.empty() || !returning_.empty() || !abandoned_.empty();
    const bool waits = !under_way && !moved;
    for (Input& input : inbox_.TakeAll(waits ? absl::InfiniteFuture() : absl::InfinitePast()))
      std::visit([this](auto& in) { Take(in); }, input);
    if (inbox_.Finished()) {
      drained_by = std::min(drained_by, clock_.Now() + kDrainLimit);
      for (Outgoing& outgoing : outgoing_)
        Fail(outgoing, absl::CancelledError("this worker has left the job"));
      outgoing_.clear();
      if (returning_.empty() && abandoned_.empty()) break;
      if (clock_.Now() >= drained_by) break;
    }
    moved = MoveOutgoing();
    moved = MoveReturning() || moved;
    std::erase_if(abandoned_, [this](const auto& staged) {
      const absl::StatusOr<bool> happened = HasHappened(staged->copied);
      if (happened.ok() && !*happened) return false;
      if (staged->pinned.has_value()) pool_.Return(*std::move(staged->pinned));
      return true;
    });
    if (moved) {
      idle.Reset();
    } else if (!outgoing_.empty() || !returning_.empty() || !abandoned_.empty()) {
      idle.Wait();
    }
  }
  for (const auto& staged : returning_)
    staged->work->Complete(absl::CancelledError("the device did not finish its copies"), {});
  // A stream that hangs may still write there.
  for (const auto& staged : abandoned_) new std::shared_ptr<Staged>(staged);
  for (const auto& staged : returning_) new std::shared_ptr<Staged>(staged);
}

void DeviceStager::Take(Outgoing& outgoing) {
  // One that could not be begun to its end: its callers know.
  if (outgoing.batch != nullptr && !outgoing.batch->status.ok()) {
    Fail(outgoing, outgoing.batch->status);
    return;
  }
  if (outgoing.batch == nullptr && outgoing.jobs.empty()) {
    for (auto& staged : outgoing.staged) abandoned_.push_back(std::move(staged));
    return;
  }
  outgoing_.push_back(std::move(outgoing));
}

void DeviceStager::Take(Ended& ended) {
  Staged& staged = *ended.staged;
  absl::Status status = std::move(ended.status);
  if (status.ok()) status = CopyBack(staged, *ended.work);
  if (!status.ok()) {
    Finish(staged, std::move(status));
    return;
  }
  returning_.push_back(std::move(ended.staged));
}

bool DeviceStager::MoveOutgoing() {
  bool moved = false;
  for (auto it = outgoing_.begin(); it != outgoing_.end();) {
    bool arrived = true;
    absl::Status failed;
    for (const auto& staged : it->staged) {
      const absl::StatusOr<bool> happened = HasHappened(staged->copied);
      if (!happened.ok()) failed = happened.status();
      arrived = arrived && happened.ok() && *happened;
    }
    if (failed.ok() && !arrived && clock_.Now() >= it->deadline) {
      failed = absl::DeadlineExceededError(
          "its input was not ready: the stream that makes it has not come so far");
    }
    if (failed.ok() && !arrived) {
      ++it;
      continue;
    }
    moved = true;
    if (failed.ok() && it->batch != nullptr) {
      it->back(std::move(it->batch));
    } else {
      if (failed.ok()) failed = forward_(it->jobs);
      if (!failed.ok()) Fail(*it, failed);
    }
    it = outgoing_.erase(it);
  }
  return moved;
}

void DeviceStager::Fail(Outgoing& outgoing, const absl::Status& status) {
  if (outgoing.batch != nullptr) {
    // Its end comes back to its Works through whoever launched it.
    for (auto& staged : outgoing.staged) abandoned_.push_back(std::move(staged));
    outgoing.batch->status = status;
    outgoing.back(std::move(outgoing.batch));
    return;
  }
  forget_(outgoing.jobs);
  for (TensorJob& job : outgoing.jobs) {
    if (IsStaged(job)) continue;
    job.work->Complete(ForTensor(job.spec().name, status), {});
  }
  for (auto& staged : outgoing.staged) {
    staged->work->Complete(ForTensor(staged->work->spec().name, status), {});
    abandoned_.push_back(std::move(staged));
  }
}

absl::Status DeviceStager::CopyBack(Staged& staged, const Work& work) {
  staged.result = work.result();
  const TensorSpec& spec = work.spec();
  const std::byte* from = staged.result.owned_output.get();
  int64_t bytes = staged.result.output_bytes;
  if (!staged.has_capacity) {
    from = staged.pinned.has_value() ? staged.pinned->data() : nullptr;
    if (staged.output == nullptr) bytes = 0;
  } else if (staged.output == nullptr) {
    COORDD_ASSIGN_OR_RETURN(staged.own_output, results_->Take(staged.device, bytes));
    staged.output = staged.own_output.get();
  } else if (bytes > staged.output_capacity_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", spec.name, ": the result has ", Counted(bytes, "byte"),
        ", expected at most the ", staged.output_capacity_bytes, " of the given output"));
  }
  if (bytes == 0 || from == nullptr) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(Streams* const streams, StreamsOf(staged.device));
  COORDD_ASSIGN_OR_RETURN(DeviceEvent copied, DeviceEvent::Create(*device_, staged.device));
  // What the program still does with the output comes first.
  if (staged.ready != nullptr) COORDD_RETURN_IF_ERROR(streams->back.Wait(staged.ready->get()));
  COORDD_RETURN_IF_ERROR(
      CopyAsync(*device_, staged.device, staged.output, from, bytes, streams->back.get()));
  COORDD_RETURN_IF_ERROR(copied.Record(streams->back.get()));
  staged.copied.emplace(std::move(copied));
  return absl::OkStatus();
}

bool DeviceStager::MoveReturning() {
  bool moved = false;
  for (auto it = returning_.begin(); it != returning_.end();) {
    const absl::StatusOr<bool> happened = HasHappened((*it)->copied);
    if (happened.ok() && !*happened) {
      ++it;
      continue;
    }
    Finish(**it, happened.status());
    it = returning_.erase(it);
    moved = true;
  }
  return moved;
}

void DeviceStager::Finish(Staged& staged, absl::Status status) {
  WorkResult result;
  if (status.ok()) {
    result = std::move(staged.result);
    result.owned_output = std::move(staged.own_output);
  }
  if (staged.pinned.has_value()) pool_.Return(*std::move(staged.pinned));
  staged.pinned.reset();
  staged.work->Complete(std::move(status), std::move(result));
}

}  // namespace coordd
