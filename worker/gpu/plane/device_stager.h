// Tensors on a GPU reduced by the host's data plane: through pinned memory, and back. (io)
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "worker/execute/batch_job.h"
#include "worker/execute/tensor_job.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/cuda/pinned_pool.h"
#include "worker/gpu/cuda/result_memory.h"

namespace coordd {

// What carries tensors of GPUs that NCCL does not. A tensor is copied to pinned memory behind
// the event that the caller's stream has for it, travels like one of the host, and its result is
// copied back; its Work is complete when the result is on the device, for every stream. Nothing
// waits on the caller's thread.
//
// The thread "stager" follows the copies; with nothing under way it sleeps. Methods are
// thread-safe, but for Stop.
class DeviceStager {
 public:
  // Submits what has arrived in host memory; or says why the worker takes no more.
  using Forward = std::function<absl::Status(std::vector<TensorJob>& jobs)>;
  // Called with tensors that were never forwarded: their names are free again.
  using Forget = std::function<void(const std::vector<TensorJob>& jobs)>;

  DeviceStager(std::shared_ptr<DeviceRuntime> device, Clock& clock, Forward forward, Forget forget);
  ~DeviceStager();  // Stop

  // Takes over the jobs, of which those with memory on a device are staged; they are forwarded
  // together once all have arrived. Their Works complete by their deadlines. INVALID_ARGUMENT: an
  // address or device that is not what the tensor says; RESOURCE_EXHAUSTED: no pinned memory. Then
  // nothing has happened.
  absl::Status Stage(std::vector<TensorJob> jobs);

  // The same for a batch that has been planned, whose tensors NCCL was to carry: `back` gets it, on
  // the thread "stager", once everything has arrived in host memory, or with a status that says why
  // not. Its Works are then complete when its result is back on the device.
  using Back = std::function<void(std::unique_ptr<BatchJob>)>;
  void StageBatch(std::unique_ptr<BatchJob> batch, Back back);

  // What has not been forwarded fails with CANCELLED; what has been must have completed. Joins the
  // thread.
  void Stop();

 private:
  // A tensor on its way.
  struct Staged {
    std::shared_ptr<Work> work;  // the caller's
    int32_t device = 0;
    std::byte* output = nullptr;  // on the device; nullptr: made when its size is known
    int64_t output_capacity_bytes = 0;
    bool has_capacity = false;  // the result's size is known to the data plane alone
    std::optional<DeviceMemory> pinned;
    std::shared_ptr<DeviceEvent> ready;  // of the caller's stream
    std::optional<DeviceEvent> copied;   // of the copy under way
    std::shared_ptr<std::byte[]> own_output;
    WorkResult result;
  };
  struct Outgoing {
    std::vector<TensorJob> jobs;  // their Works are ours: the callers' are in `staged`
    std::vector<std::shared_ptr<Staged>> staged;
    absl::Time deadline;
    std::unique_ptr<BatchJob> batch;  // instead of jobs
    Back back;
  };
  struct Ended {  // by the host's data plane
    std::shared_ptr<Staged> staged;
    std::shared_ptr<Work> work;
    absl::Status status;
  };
  using Input = std::variant<Outgoing, Ended>;
  struct Streams {      // of a device
    DeviceStream out;   // used under mu_
    DeviceStream back;  // by "stager"
  };

  absl::Status Begin(TensorJob& job, Outgoing& outgoing);
  absl::Status CopyOut(const TensorJob& job, Staged& staged, int64_t bytes);
  absl::StatusOr<Streams*> StreamsOf(int32_t device);
  void Run();
  void Take(Outgoing& outgoing);
  void Take(Ended& ended);
  // Whether anything happened.
  bool MoveOutgoing();
  bool MoveReturning();
  absl::Status CopyBack(Staged& staged, const Work& work);
  void Finish(Staged& staged, absl::Status status);
  void Fail(Outgoing& outgoing, const absl::Status& status);

  // Constant after construction.
  const std::shared_ptr<DeviceRuntime> device_;
  Clock& clock_;
  const Forward forward_;
  const Forget forget_;

  // Thread-safe by itself.
  PinnedPool pool_;
  const std::shared_ptr<ResultMemory> results_;
  BoundedQueue<Input> inbox_;

  // Guarded by mu_.
  Mutex mu_;
  std::map<int32_t, Streams> streams_ ABSL_GUARDED_BY(mu_);

  // Touched by "stager".
  std::deque<Outgoing> outgoing_;
  std::deque<std::shared_ptr<Staged>> returning_;
  std::deque<std::shared_ptr<Staged>> abandoned_;  // failed, while a copy was still under way

  // Touched by the owner's thread.
  std::thread thread_;
};

}  // namespace coordd
