// Submissions: from the C structures to worker/api/worker.h.
#include "client/c_api/c_api_submit.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "worker/gpu/cuda/result_memory.h"

namespace coordd {
namespace {

absl::StatusOr<ReduceOp> OpOf(const Call& call) {
  if (!Reduces(call.kind)) return ReduceOp::kNone;
  if (call.op < COORDD_SUM || call.op > COORDD_PRODUCT) {
    return absl::InvalidArgumentError(
        absl::StrCat("op is ", call.op, ": expected COORDD_SUM (1) to COORDD_PRODUCT (5)"));
  }
  return static_cast<ReduceOp>(call.op);
}

absl::Status CheckTensor(const coordd_tensor_t& tensor) {
  if (tensor.name == nullptr) return NullArgument("tensor name");
  if (tensor.device_kind != COORDD_HOST && tensor.device_kind != COORDD_CUDA) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, ": device kind is ", tensor.device_kind,
                     ": expected COORDD_HOST (0) or COORDD_CUDA (1)"));
  }
  if (tensor.dtype < COORDD_UINT8 || tensor.dtype > COORDD_FLOAT8_E5M2) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, ": dtype is ", tensor.dtype,
                     ": expected COORDD_UINT8 (1) to COORDD_FLOAT8_E5M2 (15)"));
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxDimensions) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": has ", tensor.ndim,
                                                   " dimensions: expected 0 to ", kMaxDimensions,
                                                   "; multiply the last ones into one"));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, ": shape is NULL, but ",
                     coordd::Counted(tensor.ndim, "dimension is", "dimensions are"), " announced"));
  }
  return absl::OkStatus();
}

// What all tensors of a call have in common.
absl::StatusOr<TensorSpec> CommonSpec(const Call& call, const coordd_call_options_t& options) {
  if (options.lane != 0) {
    return absl::UnimplementedError(
        absl::StrCat("lane ", options.lane, "; coordd ", coordd_version(), " has only 0"));
  }
  TensorSpec spec;
  spec.kind = call.kind;
  COORDD_ASSIGN_OR_RETURN(spec.op, OpOf(call));
  if (IsPairwise(call.kind)) {
    spec.peer_rank = call.rank;
  } else {
    spec.root_rank = call.rank;
  }
  spec.process_set = ProcessSetId{options.process_set};
  spec.refused = std::string(call.refused);
  if (options.prescale_factor != 0) spec.prescale_factor = options.prescale_factor;
  if (options.postscale_factor != 0) spec.postscale_factor = options.postscale_factor;
  return spec;
}

MemoryKind MemoryOf(const coordd_tensor_t& tensor) {
  return tensor.device_kind == COORDD_CUDA ? MemoryKind::kCuda : MemoryKind::kHost;
}

TensorSpec SpecOf(const coordd_tensor_t& tensor, TensorSpec common) {
  common.name = tensor.name;
  common.dtype = static_cast<DataType>(tensor.dtype);
  common.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  common.memory = MemoryOf(tensor);
  return common;
}

// Whether `spec`, of a group, is SpecOf them but for the group.
bool IsSpecOf(const TensorSpec& spec, const coordd_tensor_t& tensor, const TensorSpec& common) {
  return spec.name == tensor.name && spec.dtype == static_cast<DataType>(tensor.dtype) &&
         spec.memory == MemoryOf(tensor) &&
         std::equal(spec.shape.begin(), spec.shape.end(), tensor.shape,
                    tensor.shape + tensor.ndim) &&
         spec.kind == common.kind && spec.op == common.op && spec.root_rank == common.root_rank &&
         spec.process_set == common.process_set && spec.prescale_factor == common.prescale_factor &&
         spec.postscale_factor == common.postscale_factor && spec.refused == common.refused;
}

TensorBuffers BuffersOf(const coordd_tensor_t& tensor) {
  TensorBuffers buffers;
  buffers.input = tensor.input;
  buffers.output = tensor.output;
  buffers.output_capacity_bytes = tensor.output_capacity_bytes;
  if (tensor.device_kind == COORDD_CUDA) {
    buffers.device = tensor.device_index;
    buffers.stream = reinterpret_cast<uintptr_t>(tensor.stream);
  }
  return buffers;
}

absl::StatusOr<Submission> ToSubmission(const coordd_tensor_t& tensor, const Call& call,
                                        const coordd_call_options_t& options) {
  COORDD_RETURN_IF_ERROR(CheckTensor(tensor));
  COORDD_ASSIGN_OR_RETURN(TensorSpec common, CommonSpec(call, options));
  Submission submission{BuffersOf(tensor), SpecOf(tensor, std::move(common)), {}};
  submission.splits.assign(call.splits.begin(), call.splits.end());
  COORDD_ASSIGN_OR_RETURN(submission.timeout, TimeoutFromSeconds(options.timeout_seconds));
  return submission;
}

// `wait` 0: not at all.
absl::StatusOr<std::shared_ptr<Work>> SubmitTensor(coordd_worker_t* worker,
                                                   const coordd_tensor_t* tensor, const Call& call,
                                                   const coordd_call_options_t* options,
                                                   absl::Duration wait, void** output = nullptr) {
  if (worker == nullptr) return NullArgument("worker");
  if (tensor == nullptr) return NullArgument("tensor");
  COORDD_ASSIGN_OR_RETURN(const coordd_tensor_t known_tensor, CopyIn(tensor, "tensor"));
  COORDD_ASSIGN_OR_RETURN(const coordd_call_options_t known_options, CopyIn(options, "options"));
  COORDD_ASSIGN_OR_RETURN(Submission submission, ToSubmission(known_tensor, call, known_options));
  if (output != nullptr) *output = submission.output;
  Worker& member = *worker->worker;
  if (wait == absl::ZeroDuration()) return member.Submit(std::move(submission));
  const absl::Time deadline =
      wait == absl::InfiniteDuration() ? absl::InfiniteFuture() : Clock::Real().Now() + wait;
  return member.SubmitAndWait(std::move(submission), deadline);
}

}  // namespace

absl::Status SubmitOne(coordd_worker_t* worker, const coordd_tensor_t* tensor, const Call& call,
                       const coordd_call_options_t* options, coordd_work_t** work,
                       absl::Duration wait) {
  if (work == nullptr) return NullArgument("work");
  *work = nullptr;
  void* output = nullptr;
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<Work> submitted,
                          SubmitTensor(worker, tensor, call, options, wait, &output));
  *work = new coordd_work{std::move(submitted), output};
  return absl::OkStatus();
}

namespace {

// The caller's structures, which may be larger or smaller than ours.
class Tensors {
 public:
  // REQUIRES: at least one.
  Tensors(const coordd_tensor_t* first, size_t count)
      : first_(reinterpret_cast<const unsigned char*>(first)),
        stride_(first->struct_size),
        count_(count) {}
  size_t size() const { return count_; }
  absl::StatusOr<coordd_tensor_t> Get(size_t i) const {
    return CopyIn(reinterpret_cast<const coordd_tensor_t*>(first_ + i * stride_), "tensor");
  }

 private:
  const unsigned char* const first_;
  const size_t stride_;  // the first one's size
  const size_t count_;
};

absl::StatusOr<std::shared_ptr<PreparedGroup>> Prepare(const char* name, const Tensors& tensors,
                                                       const TensorSpec& common) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    COORDD_ASSIGN_OR_RETURN(const coordd_tensor_t tensor, tensors.Get(i));
    specs.push_back(SpecOf(tensor, common));
  }
  return std::make_shared<PreparedGroup>(name, std::move(specs));
}

}  // namespace

absl::Status SubmitMany(coordd_worker_t* worker, const char* name, const coordd_tensor_t* tensors,
                        size_t count, const Call& call, const coordd_call_options_t* options,
                        coordd_work_t** works) {
  if (worker == nullptr) return NullArgument("worker");
  if (name == nullptr) return NullArgument("name");
  if (tensors == nullptr) return NullArgument("tensors");
  if (count == 0 || count > static_cast<size_t>(kMaxGroupSize)) {
    return absl::InvalidArgumentError(
        absl::StrCat("group ", name, ": has ", count, " tensors: expected 1 to ", kMaxGroupSize));
  }
  if (works == nullptr) return NullArgument("works");
  std::fill(works, works + count, nullptr);
  COORDD_ASSIGN_OR_RETURN(const coordd_call_options_t known_options, CopyIn(options, "options"));
  COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                          TimeoutFromSeconds(known_options.timeout_seconds));
  COORDD_ASSIGN_OR_RETURN(const TensorSpec common, CommonSpec(call, known_options));
  std::shared_ptr<PreparedGroup> group = worker->groups.Find(name);
  bool is_same = group != nullptr && group->specs().size() == count;
  const Tensors given(tensors, count);
  std::vector<TensorBuffers> buffers;
  buffers.reserve(count);
  std::vector<void*> outputs;
  outputs.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    COORDD_ASSIGN_OR_RETURN(const coordd_tensor_t tensor, given.Get(i));
    COORDD_RETURN_IF_ERROR(CheckTensor(tensor));
    is_same = is_same && IsSpecOf(*group->specs()[i], tensor, common);
    buffers.push_back(BuffersOf(tensor));
    outputs.push_back(tensor.output);
  }
  if (!is_same) {
    COORDD_ASSIGN_OR_RETURN(group, Prepare(name, given, common));
    worker->groups.Keep(group);
  }
  COORDD_ASSIGN_OR_RETURN(std::vector<std::shared_ptr<Work>> submitted,
                          worker->worker->SubmitGroup(*group, std::move(buffers), timeout));
  for (size_t i = 0; i < count; ++i)
    works[i] = new coordd_work{std::move(submitted[i]), outputs[i]};
  return absl::OkStatus();
}

absl::Status WaitForAll(absl::Span<coordd_work_t* const> handles, coordd_work_t** works) {
  absl::Status first;
  for (const coordd_work_t* handle : handles)
    first.Update(handle->work->Wait(absl::InfiniteFuture()));
  const bool hand_over = first.ok() && works != nullptr;
  for (size_t i = 0; i < handles.size(); ++i) {
    if (works != nullptr) works[i] = hand_over ? handles[i] : nullptr;
    if (!hand_over) coordd_work_release(handles[i]);
  }
  return first;
}

coordd_status_t Async(coordd_worker_t* worker, const coordd_tensor_t* tensor, const Call& call,
                      const coordd_call_options_t* options, coordd_work_t** work) {
  return AtBorder([&] { return SubmitOne(worker, tensor, call, options, work); });
}

coordd_status_t Blocking(coordd_worker_t* worker, const coordd_tensor_t* tensor, const Call& call,
                         const coordd_call_options_t* options, coordd_work_t** work) {
  return AtBorder([&]() -> absl::Status {
    if (work == nullptr) {
      COORDD_ASSIGN_OR_RETURN(
          const std::shared_ptr<Work> submitted,
          SubmitTensor(worker, tensor, call, options, absl::InfiniteDuration()));
      const absl::Status ended = submitted->Wait(absl::InfiniteFuture());
      ResultMemory::NoteReleased(submitted->owned_output());
      return ended;
    }
    *work = nullptr;
    coordd_work_t* handle = nullptr;
    COORDD_RETURN_IF_ERROR(
        SubmitOne(worker, tensor, call, options, &handle, absl::InfiniteDuration()));
    return WaitForAll({handle}, work);
  });
}

coordd_status_t BlockingFor(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                            const Call& call, const coordd_call_options_t* options,
                            double timeout_seconds, coordd_work_t** work) {
  return AtBorder([&]() -> absl::Status {
    if (work == nullptr) return NullArgument("work");
    *work = nullptr;
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutFromSeconds(timeout_seconds));
    COORDD_RETURN_IF_ERROR(SubmitOne(worker, tensor, call, options, work, timeout));
    const absl::Status status = (*work)->work->Wait(absl::InfinitePast());  // it has waited
    if (status.ok()) coordd_work_release(std::exchange(*work, nullptr));
    return status;
  });
}

coordd_status_t GroupedAsync(coordd_worker_t* worker, const char* name,
                             const coordd_tensor_t* tensors, size_t count, const Call& call,
                             const coordd_call_options_t* options, coordd_work_t** works) {
  return AtBorder([&] { return SubmitMany(worker, name, tensors, count, call, options, works); });
}

coordd_status_t GroupedBlocking(coordd_worker_t* worker, const char* name,
                                const coordd_tensor_t* tensors, size_t count, const Call& call,
                                const coordd_call_options_t* options, coordd_work_t** works) {
  return AtBorder([&]() -> absl::Status {
    std::vector<coordd_work_t*> handles(std::min(count, static_cast<size_t>(kMaxGroupSize)));
    COORDD_RETURN_IF_ERROR(SubmitMany(worker, name, tensors, count, call, options, handles.data()));
    return WaitForAll(handles, works);
  });
}

}  // namespace coordd
