#include "worker/gpu/plane/device_graphs.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/machine/build_info.h"
#include "worker/gpu/cuda/stream_capture.h"
#include "worker/gpu/nccl/nccl_route.h"
#include "worker/gpu/nccl/store_end.h"
#include "worker/gpu/nccl/store_limits.h"
#include "worker/gpu/plane/device_buffers.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

constexpr char kSame[] = "same";

absl::Status Aborted() { return absl::AbortedError("the generation's collectives were aborted"); }

absl::Status InCapture(const absl::Status& why) {
  return {why.code(),
          absl::StrCat("its stream is being captured into a CUDA graph, and ", why.message())};
}

absl::Status NotCaptured(absl::string_view what) {
  return InCapture(absl::UnimplementedError(what));
}

// Whether a capture takes it.
absl::Status CheckKind(const TensorSpec& spec) {
  switch (spec.kind) {
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kAllgather:
    case CollectiveKind::kReducescatter:
    case CollectiveKind::kBroadcast:
      break;
    default:
      return NotCaptured(absl::StrCat(Name(spec.kind),
                                      " cannot be, expected allreduce, allgather, reducescatter or "
                                      "broadcast"));
  }
  if (!FitsNccl(spec)) {
    return NotCaptured(absl::StrCat(Name(spec.op), " of ", Name(spec.dtype),
                                    " is not reduced by NCCL, which is all that a graph can do"));
  }
  if (spec.kind == CollectiveKind::kReducescatter && spec.prescale_factor != 1.0) {
    return NotCaptured("a reducescatter has no prescale factor there, expected a postscale factor");
  }
  return absl::OkStatus();
}

// REQUIRES: CheckKind.
absl::StatusOr<CapturedTensor> ToCaptured(const TensorJob& job, int32_t size) {
  const TensorSpec& spec = job.spec();
  CapturedTensor tensor;
  tensor.dtype = spec.dtype;
  tensor.input = job.input;
  tensor.output = job.output;
  tensor.input_bytes = tensor.output_bytes = SizeBytes(spec);
  if (spec.kind == CollectiveKind::kAllgather) tensor.output_bytes *= size;
  if (spec.kind == CollectiveKind::kReducescatter) {
    if (spec.shape.empty() || spec.shape.front() % size != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "its first dimension is ", spec.shape.empty() ? 0 : spec.shape.front(),
          ", expected a multiple of ", size, " in a CUDA graph, where all blocks are equal"));
    }
    tensor.output_bytes /= size;
  }
  if (tensor.output == nullptr && tensor.output_bytes > 0) {
    return absl::InvalidArgumentError(
        "has no output, expected one in a CUDA graph: the library allocates nothing there");
  }
  const bool has_capacity =
      spec.kind == CollectiveKind::kAllgather || spec.kind == CollectiveKind::kReducescatter;
  if (has_capacity && job.output_capacity_bytes != 0 &&
      job.output_capacity_bytes < tensor.output_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("its output has ", job.output_capacity_bytes,
                                                   " bytes, expected ", tensor.output_bytes));
  }
  if (!Reduces(spec.kind)) return tensor;
  tensor.prescale = spec.prescale_factor;
  tensor.scale = spec.postscale_factor / (spec.op == ReduceOp::kAverage ? size : 1);
  return tensor;
}

WorkResult ResultOf(const TensorJob& job, const CapturedTensor& tensor, int32_t size) {
  WorkResult result;
  result.generation = job.generation;
  result.size = size;
  result.output_bytes = tensor.output_bytes;
  result.output_shape.assign(job.spec().shape.begin(), job.spec().shape.end());
  if (result.output_shape.empty()) return result;
  if (job.spec().kind == CollectiveKind::kAllgather) result.output_shape.front() *= size;
  if (job.spec().kind == CollectiveKind::kReducescatter) result.output_shape.front() /= size;
  return result;
}

}  // namespace

DeviceGraphs::DeviceGraphs(const GroupLayout& layout, GpuAccess& access, Store& store, Clock& clock,
                           NcclBackendOptions options, Hooks hooks)
    : layout_(layout),
      access_(access),
      store_(store),
      clock_(clock),
      options_(std::move(options)),
      hooks_(std::move(hooks)) {}

absl::StatusOr<DeviceGraphs::Place> DeviceGraphs::PlaceIn(ProcessSetId process_set) {
  Place place{ToInt(layout_.self()), layout_.size(), nullptr};
  if (ToInt(process_set) == 0) return place;
  MutexLock lock(&mu_);
  const auto found = sets_.find(process_set);
  if (found == sets_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("process set ", ToInt(process_set), ", expected one that this rank is in"));
  }
  place.ranks = found->second;
  const auto self = std::lower_bound(place.ranks->begin(), place.ranks->end(), place.index);
  place.index = static_cast<int32_t>(self - place.ranks->begin());
  place.size = static_cast<int32_t>(place.ranks->size());
  return place;
}

std::shared_ptr<GraphCommunicators> DeviceGraphs::made() {
  MutexLock lock(&mu_);
  return communicators_;
}

absl::StatusOr<std::shared_ptr<GraphCommunicators>> DeviceGraphs::Communicators(int32_t device) {
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<NcclRuntime> nccl, access_.Nccl());
  MutexLock lock(&mu_);
  if (aborted_) return Aborted();
  if (communicators_ != nullptr) return communicators_;
  GraphCommunicatorsOptions options;
  options.device = device;
  options.gate_limit = options_.gate_limit;
  options.communicators = options_.communicators;
  options.watchdog = options_.watchdog;
  COORDD_ASSIGN_OR_RETURN(
      communicators_, GraphCommunicators::Create(std::move(nccl), clock_, options, hooks_.failed));
  return communicators_;
}

absl::Status DeviceGraphs::AwaitNccl(ProcessSetId process_set, absl::Time deadline) {
  IdleWait idle(1, 1);
  while (true) {
    const auto decision = hooks_.agree(process_set);
    if (decision.has_value()) {
      COORDD_RETURN_IF_ERROR(decision->status());
      if ((*decision)->nccl) return absl::OkStatus();
      return absl::UnimplementedError(
          absl::StrCat("graphs are for NCCL, which not all ranks have: ", (*decision)->why_not));
    }
    {
      MutexLock lock(&mu_);
      if (aborted_) return Aborted();
    }
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "not all ranks of process set ", ToInt(process_set), " have prepared it for graphs"));
    }
    idle.Wait();
  }
}

absl::Status DeviceGraphs::Prepare(ProcessSetId process_set, int32_t device, absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(const Place place, PlaceIn(process_set));
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceRuntime> devices, access_.Devices());
  if (device < 0 || device >= devices->device_count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", device, ", expected 0 to ", devices->device_count() - 1));
  }
  const absl::StatusOr<std::shared_ptr<NcclRuntime>> nccl = access_.Nccl();
  if (nccl.ok()) COORDD_RETURN_IF_ERROR(hooks_.claim(device));
  COORDD_RETURN_IF_ERROR(AwaitNccl(process_set, deadline));
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<GraphCommunicators> communicators,
                          Communicators(device));
  NcclPlace at;
  at.job = options_.job;
  at.group = process_set;
  at.rank = place.index;
  at.size = place.size;
  at.device = device;
  at.device_uuid = devices->identity(device).uuid;
  at.nccl_version = NcclVersionText((*nccl)->nccl.version);
  at.driver_version = devices->driver_version();
  at.interface = (*nccl)->interface;
  return communicators->Prepare(std::move(at), store_, deadline);
}

absl::StatusOr<bool> DeviceGraphs::Capture(absl::Span<TensorJob> jobs, size_t* failed) {
  *failed = 0;
  const auto first =
      std::find_if(jobs.begin(), jobs.end(), [](const TensorJob& job) { return job.device >= 0; });
  if (first == jobs.end()) return false;
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceRuntime> devices, access_.Devices());
  // The tensors of one call are on one stream, or the call is none for a graph.
  const bool one_stream = std::all_of(jobs.begin(), jobs.end(), [&](const TensorJob& job) {
    return job.device == first->device && job.stream == first->stream;
  });
  bool captured = false;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].device < 0 || jobs[i].device >= devices->device_count()) continue;
    if (i > 0 && one_stream) break;
    COORDD_ASSIGN_OR_RETURN(DeviceScope scope, DeviceScope::Enter(*devices, jobs[i].device));
    if (!devices->IsCaptured(reinterpret_cast<CudaStream>(jobs[i].stream))) continue;
    captured = true;
    *failed = i;
    if (!one_stream) return NotCaptured("not all tensors of its group are on that stream");
  }
  if (!captured) return false;
  const RelaxedCapture relaxed(*devices);
  const TensorSpec& spec = first->spec();
  const std::shared_ptr<GraphCommunicators> communicators = made();
  if (communicators == nullptr || !communicators->IsPrepared(spec.process_set))
    return InCapture(GraphCommunicators::NotPrepared(spec.process_set));
  COORDD_ASSIGN_OR_RETURN(const Place place, PlaceIn(spec.process_set));
  CapturedCall call;
  call.kind = spec.kind;
  call.op = spec.op == ReduceOp::kAverage ? ReduceOp::kSum : spec.op;
  if (spec.kind == CollectiveKind::kBroadcast) call.root = spec.root_rank;
  if (spec.kind == CollectiveKind::kBroadcast && place.ranks != nullptr) {
    const auto root = std::lower_bound(place.ranks->begin(), place.ranks->end(), spec.root_rank);
    call.root = static_cast<int32_t>(root - place.ranks->begin());
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    *failed = i;
    COORDD_RETURN_IF_ERROR(CheckKind(jobs[i].spec()));
    COORDD_RETURN_IF_ERROR(CheckBuffers(*devices, jobs[i]));
    COORDD_RETURN_IF_ERROR(hooks_.claim(jobs[i].device));
    COORDD_ASSIGN_OR_RETURN(CapturedTensor tensor, ToCaptured(jobs[i], place.size));
    call.tensors.push_back(tensor);
  }
  *failed = 0;
  COORDD_RETURN_IF_ERROR(
      communicators->Capture(spec.process_set, call, reinterpret_cast<CudaStream>(first->stream)));
  for (size_t i = 0; i < jobs.size(); ++i)
    jobs[i].work->Complete(absl::OkStatus(), ResultOf(jobs[i], call.tensors[i], place.size));
  return true;
}

// --- whether all have captured the same ---------------------------------------------------------

absl::Status DeviceGraphs::Check(ProcessSetId process_set, absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(const Place place, PlaceIn(process_set));
  const std::shared_ptr<GraphCommunicators> communicators = made();
  if (communicators == nullptr) return GraphCommunicators::NotPrepared(process_set);
  COORDD_ASSIGN_OR_RETURN(std::string own, communicators->Captured(process_set));
  int64_t number = 0;
  {
    MutexLock lock(&mu_);
    number = checks_[process_set]++;
  }
  const std::string prefix = absl::StrCat("graphs/", ToInt(process_set), "/", number, "/");
  COORDD_RETURN_IF_ERROR(
      EndOr(store_.Set(absl::StrCat(prefix, "rank/", place.index), std::move(own), deadline)));
  std::string verdict;
  if (place.index == 0) {
    COORDD_ASSIGN_OR_RETURN(verdict, Compare(process_set, place, prefix, deadline));
    COORDD_RETURN_IF_ERROR(EndOr(store_.Set(absl::StrCat(prefix, "verdict"), verdict, deadline)));
  } else {
    absl::StatusOr<std::string> told = store_.Get(absl::StrCat(prefix, "verdict"), deadline);
    COORDD_RETURN_IF_ERROR(EndOr(told.status()));
    verdict = *std::move(told);
  }
  return verdict == kSame ? absl::OkStatus() : absl::InvalidArgumentError(verdict);
}

absl::StatusOr<std::string> DeviceGraphs::Compare(ProcessSetId process_set, const Place& place,
                                                  const std::string& prefix, absl::Time deadline) {
  std::vector<int32_t> ranks(static_cast<size_t>(place.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (place.ranks != nullptr) ranks = *place.ranks;
  std::vector<std::string> captured;
  for (int32_t index = 0; index < place.size; ++index) {
    auto of_rank = store_.Get(absl::StrCat(prefix, "rank/", index), deadline);
    if (absl::IsDeadlineExceeded(of_rank.status())) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", ranks[static_cast<size_t>(index)],
                       " has not come to the check of graphs of process set ", ToInt(process_set)));
    }
    COORDD_RETURN_IF_ERROR(EndOr(of_rank.status()));
    captured.push_back(*std::move(of_rank));
  }
  const std::string difference = FirstDifference(captured, ranks);
  return difference.empty() ? std::string(kSame) : difference;
}

// --- the generation's life ----------------------------------------------------------------------

void DeviceGraphs::DefineGroup(ProcessSetId process_set, RankList ranks) {
  MutexLock lock(&mu_);
  sets_[process_set] = std::move(ranks);
}

void DeviceGraphs::EndGroup(ProcessSetId process_set) {
  std::shared_ptr<GraphCommunicators> communicators;
  {
    MutexLock lock(&mu_);
    sets_.erase(process_set);
    communicators = communicators_;
  }
  if (communicators != nullptr) communicators->EndGroup(process_set);
}

void DeviceGraphs::Abort() {
  std::shared_ptr<GraphCommunicators> communicators;
  {
    MutexLock lock(&mu_);
    aborted_ = true;
    communicators = communicators_;
  }
  if (communicators != nullptr) communicators->Fail(Aborted());
}

void DeviceGraphs::Told() {
  if (const std::shared_ptr<GraphCommunicators> communicators = made()) communicators->PassGate();
}

void DeviceGraphs::End() {
  if (const std::shared_ptr<GraphCommunicators> communicators = made()) communicators->End();
}

}  // namespace coordd
