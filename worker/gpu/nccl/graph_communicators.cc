#include "worker/gpu/nccl/graph_communicators.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/gpu/cuda/stream_capture.h"
#include "worker/gpu/nccl/nccl_gate.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

// What a captured call may take to become a part of the graph: its first one may connect ranks.
constexpr absl::Duration kCaptureLimit = absl::Minutes(5);
constexpr size_t kFirstCallBytes = sizeof(uint32_t);

// What graphs may refer to as long as the process lasts.
struct KeptForGraphs {
  std::shared_ptr<NcclRuntime> runtime;  // the kernels are its modules'
  DeviceMemory memory;
};
std::byte* Keep(std::shared_ptr<NcclRuntime> runtime, DeviceMemory memory) {
  static Mutex mu;
  static auto* const kept = new std::vector<KeptForGraphs>;
  std::byte* const data = memory.data();
  MutexLock lock(&mu);
  kept->push_back({std::move(runtime), std::move(memory)});
  return data;
}

NcclResult CallNccl(const NcclFunctions& nccl, const CapturedCall& call,
                    const CapturedTensor& tensor, NcclComm comm, CudaStream stream) {
  const auto count = [&tensor](int64_t bytes) {
    return static_cast<size_t>(bytes / SizeOf(tensor.dtype));
  };
  const std::byte* const input = tensor.prescale == 1.0 ? tensor.input : tensor.output;
  switch (call.kind) {
    case CollectiveKind::kAllreduce: {
      const NcclReduction by = *NcclReductionOf(tensor.dtype, call.op);
      return nccl.AllReduce(input, tensor.output, count(tensor.input_bytes), by.type, by.op, comm,
                            stream);
    }
    case CollectiveKind::kReducescatter: {
      const NcclReduction by = *NcclReductionOf(tensor.dtype, call.op);
      return nccl.ReduceScatter(input, tensor.output, count(tensor.output_bytes), by.type, by.op,
                                comm, stream);
    }
    case CollectiveKind::kAllgather:
      return nccl.AllGather(input, tensor.output, static_cast<size_t>(tensor.input_bytes),
                            NcclType::kUint8, comm, stream);
    case CollectiveKind::kBroadcast:
      return nccl.Broadcast(input, tensor.output, static_cast<size_t>(tensor.input_bytes),
                            NcclType::kUint8, call.root, comm, stream);
    default:
      return NcclResult::kInvalidArgument;
  }
}

NcclResult CallNccl(const NcclFunctions& nccl, const CapturedCall& call, NcclComm comm,
                    CudaStream stream) {
  if (call.tensors.size() == 1) return CallNccl(nccl, call, call.tensors.front(), comm, stream);
  NcclResult result = nccl.GroupStart();
  if (result != NcclResult::kSuccess) return result;
  for (const CapturedTensor& tensor : call.tensors) {
    if (tensor.input_bytes > 0) result = CallNccl(nccl, call, tensor, comm, stream);
    if (result != NcclResult::kSuccess) break;
  }
  const NcclResult ended = nccl.GroupEnd();
  return result == NcclResult::kSuccess ? ended : result;
}

}  // namespace

absl::StatusOr<std::shared_ptr<GraphCommunicators>> GraphCommunicators::Create(
    std::shared_ptr<NcclRuntime> runtime, Clock& clock, GraphCommunicatorsOptions options,
    std::function<void()> failed) {
  if (!CanCapture(*runtime->device)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the driver ", runtime->device->driver_version(), " captures no streams into graphs"));
  }
  COORDD_ASSIGN_OR_RETURN(DeviceKernels kernels,
                          DeviceKernels::Load(*runtime->device, options.device));
  COORDD_ASSIGN_OR_RETURN(
      DeviceMemory memory,
      DeviceMemory::AllocatePinned(*runtime->device, options.device, sizeof(uint32_t)));
  auto* const word = new (Keep(runtime, std::move(memory))) std::atomic<uint32_t>(kGateOpen);
  return std::shared_ptr<GraphCommunicators>(new GraphCommunicators(
      std::move(runtime), clock, std::move(options), std::move(kernels), word, std::move(failed)));
}

namespace {

NcclWatchdogOptions WatchdogOptions(const GraphCommunicatorsOptions& options) {
  NcclWatchdogOptions watchdog = options.watchdog;
  watchdog.gate_limit = options.gate_limit;
  return watchdog;
}

}  // namespace

GraphCommunicators::GraphCommunicators(std::shared_ptr<NcclRuntime> runtime, Clock& clock,
                                       GraphCommunicatorsOptions options, DeviceKernels kernels,
                                       std::atomic<uint32_t>* word, std::function<void()> failed)
    : runtime_(std::move(runtime)),
      options_(std::move(options)),
      clock_(clock),
      kernels_(std::move(kernels)),
      word_(word),
      watchdog_(clock, word, WatchdogOptions(options_), {.failed = std::move(failed)}) {
  // A graph may be launched at any time.
  watchdog_.SetBusy(true);
}

GraphCommunicators::~GraphCommunicators() {
  End();
  PassGate();
}

absl::StatusOr<std::shared_ptr<GraphCommunicators::Member>> GraphCommunicators::Find(
    ProcessSetId process_set) {
  MutexLock lock(&mu_);
  const auto found = members_.find(process_set);
  if (found != members_.end()) return found->second;
  return NotPrepared(process_set);
}

absl::Status GraphCommunicators::NotPrepared(ProcessSetId process_set) {
  return absl::FailedPreconditionError(absl::StrCat(
      "process set ", ToInt(process_set),
      " has no communicator for CUDA graphs in this generation, expected coordd_graphs_prepare "
      "(prepare_graphs) to have been called on all its ranks before the capture"));
}

absl::StatusOr<std::shared_ptr<NcclCommunicator>> GraphCommunicators::Make(NcclPlace place,
                                                                           Store& store,
                                                                           absl::Time deadline) {
  CommunicatorMaker maker(runtime_, std::move(place), store, clock_, watchdog_, deadline,
                          options_.communicators);
  IdleWait idle(1, 1);
  while (true) {
    auto made = maker.Take();
    if (made.has_value()) return *std::move(made);
    if (watchdog_.failed()) return watchdog_.failure();
    idle.Wait();
  }
}

absl::Status GraphCommunicators::Prepare(NcclPlace place, Store& store, absl::Time deadline) {
  const ProcessSetId process_set = place.group;
  if (IsPrepared(process_set)) return absl::OkStatus();
  place.for_graphs = true;
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<NcclCommunicator> communicator,
                          Make(std::move(place), store, deadline));
  const absl::Status connected = Connect(*communicator, deadline);
  if (!connected.ok()) {
    // It may be at half of it: nothing can be captured with it any more, here or elsewhere.
    watchdog_.Fail(connected);
    return connected;
  }
  auto member = std::make_shared<Member>();
  member->communicator = std::move(communicator);
  MutexLock lock(&mu_);
  members_[process_set] = std::move(member);
  return absl::OkStatus();
}

absl::Status GraphCommunicators::Connect(NcclCommunicator& communicator, absl::Time deadline) {
  DeviceRuntime& device = *runtime_->device;
  const NcclFunctions& nccl = runtime_->nccl.functions;
  const RelaxedCapture relaxed(device);
  COORDD_ASSIGN_OR_RETURN(DeviceStream stream, DeviceStream::Create(device, options_.device));
  COORDD_ASSIGN_OR_RETURN(DeviceMemory memory,
                          DeviceMemory::Allocate(device, options_.device, kFirstCallBytes));
  std::byte* const number = Keep(runtime_, std::move(memory));  // freeing it could wait
  auto allreduce = [&]() -> absl::Status {
    COORDD_RETURN_IF_ERROR(communicator.Call("ncclAllReduce", [&](NcclComm comm) {
      return nccl.AllReduce(number, number, 1, NcclType::kUint32, NcclOp::kMax, comm, stream.get());
    }));
    return AwaitLaunched(communicator, deadline);
  };
  COORDD_RETURN_IF_ERROR(allreduce());
  COORDD_ASSIGN_OR_RETURN(DeviceEvent through, DeviceEvent::Create(device, options_.device));
  COORDD_RETURN_IF_ERROR(through.Record(stream.get()));
  IdleWait idle(1, 1);
  while (true) {
    COORDD_ASSIGN_OR_RETURN(const bool happened, through.Happened());
    if (happened) break;
    if (watchdog_.failed()) return watchdog_.failure();
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError(
          "the first allreduce of a communicator for graphs is not through: not all ranks have "
          "come to it");
    }
    idle.Wait();
  }
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<const void> graph,
                          CaptureGraph(runtime_->device, options_.device, stream.get(), allreduce));
  communicator.Anchor(std::move(graph));
  return absl::OkStatus();
}

absl::Status GraphCommunicators::AwaitLaunched(NcclCommunicator& communicator,
                                               absl::Time deadline) {
  // NCCL launches on a thread of its own what a non-blocking communicator is given, and the program
  // may end its capture when this returns.
  while (true) {
    COORDD_ASSIGN_OR_RETURN(const bool pending, communicator.Pending());
    if (!pending) return absl::OkStatus();
    if (watchdog_.failed()) return watchdog_.failure();
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError("NCCL has not launched it: not all ranks have come to it");
    }
    sched_yield();
  }
}

absl::Status GraphCommunicators::Capture(ProcessSetId process_set, const CapturedCall& call,
                                         CudaStream stream) {
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<Member> member, Find(process_set));
  if (watchdog_.failed()) return watchdog_.failure();
  MutexLock lock(&member->mu);
  const absl::Status enqueued = Enqueue(*member->communicator, call, stream);
  if (enqueued.ok()) member->sequence.Add(DescribeCall(call));
  return enqueued;
}

absl::Status GraphCommunicators::Enqueue(NcclCommunicator& communicator, const CapturedCall& call,
                                         CudaStream stream) {
  const RelaxedCapture relaxed(*runtime_->device);
  std::vector<DeviceRow> outputs;
  for (const CapturedTensor& tensor : call.tensors) {
    if (tensor.input_bytes == 0) continue;
    outputs.push_back({nullptr, tensor.output, static_cast<uint64_t>(tensor.output_bytes)});
    if (tensor.prescale == 1.0) continue;
    const DeviceRow row{tensor.input, tensor.output,
                        static_cast<uint64_t>(tensor.input_bytes / SizeOf(tensor.dtype))};
    COORDD_RETURN_IF_ERROR(
        kernels_.Scale(tensor.dtype, tensor.dtype, tensor.prescale, {row}, stream));
  }
  if (outputs.empty()) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(communicator.Call("a captured call", [&](NcclComm comm) {
    return CallNccl(runtime_->nccl.functions, call, comm, stream);
  }));
  COORDD_RETURN_IF_ERROR(AwaitLaunched(communicator, clock_.Now() + kCaptureLimit));
  std::map<std::pair<DataType, double>, std::vector<DeviceRow>> scaled;
  for (const CapturedTensor& tensor : call.tensors) {
    if (tensor.scale == 1.0 || tensor.input_bytes == 0) continue;
    scaled[{tensor.dtype, tensor.scale}].push_back(
        {tensor.output, tensor.output,
         static_cast<uint64_t>(tensor.output_bytes / SizeOf(tensor.dtype))});
  }
  for (const auto& [how, rows] : scaled)
    COORDD_RETURN_IF_ERROR(kernels_.Scale(how.first, how.first, how.second, rows, stream));
  return kernels_.Seal(word_, outputs, stream, options_.gate_limit);
}

absl::StatusOr<std::string> GraphCommunicators::Captured(ProcessSetId process_set) {
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<Member> member, Find(process_set));
  MutexLock lock(&member->mu);
  return member->sequence.Encode();
}

void GraphCommunicators::EndGroup(ProcessSetId process_set) {
  std::shared_ptr<Member> ended;
  {
    MutexLock lock(&mu_);
    const auto found = members_.find(process_set);
    if (found == members_.end()) return;
    ended = std::move(found->second);
    members_.erase(found);
  }
  watchdog_.Retire(ended->communicator);
}

void GraphCommunicators::Fail(absl::Status why) { watchdog_.Fail(std::move(why)); }

void GraphCommunicators::End() {
  watchdog_.SetBusy(false);
  watchdog_.Fail(CollectivesAborted());
  uint32_t open = kGateOpen;
  word_->compare_exchange_strong(open, kGatePassed);
}

void GraphCommunicators::PassGate() {
  uint32_t held = kGateHeld;
  word_->compare_exchange_strong(held, kGatePassed);
  watchdog_.GatePassed();
}

}  // namespace coordd
