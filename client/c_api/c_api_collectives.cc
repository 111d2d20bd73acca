// Submissions: from the C structures to worker/worker.h.
#include <vector>

#include "absl/types/span.h"
#include "client/c_api/c_api_internal.h"
#include "common/clock.h"
#include "common/status_macros.h"

namespace coordd {
namespace {

// What distinguishes the collectives besides their tensors.
struct Call {
  CollectiveKind kind;
  coordd_op_t op = 0;
  int32_t root = 0;
  absl::Span<const int64_t> splits = {};
};

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
  if (tensor.device_kind == COORDD_CUDA) {
    return absl::UnimplementedError(absl::StrCat("tensor ", tensor.name, ": is on CUDA device ",
                                                 tensor.device_index, "; coordd ", coordd_version(),
                                                 " takes tensors in host memory only"));
  }
  if (tensor.device_kind != COORDD_HOST) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, ": device kind is ", tensor.device_kind,
                     ": expected COORDD_HOST (0) or COORDD_CUDA (1)"));
  }
  if (tensor.dtype < COORDD_UINT8 || tensor.dtype > COORDD_BOOL) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", tensor.name, ": dtype is ", tensor.dtype,
                     ": expected COORDD_UINT8 (1) to COORDD_BOOL (13)"));
  }
  if (tensor.ndim < 0 || tensor.ndim > kMaxDimensions) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": has ", tensor.ndim,
                                                   " dimensions: expected 0 to ", kMaxDimensions));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, ": shape is NULL, but ",
                                                   tensor.ndim, " dimensions are announced"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Submission> ToSubmission(const coordd_tensor_t& tensor, const Call& call,
                                        const coordd_call_options_t& options) {
  COORDD_RETURN_IF_ERROR(CheckTensor(tensor));
  if (options.process_set != 0 || options.lane != 0) {
    return absl::UnimplementedError(
        absl::StrCat("tensor ", tensor.name, ": process set ", options.process_set, ", lane ",
                     options.lane, "; coordd ", coordd_version(), " has only 0, all ranks"));
  }
  Submission submission;
  TensorSpec& spec = submission.spec;
  spec.name = tensor.name;
  spec.kind = call.kind;
  spec.dtype = static_cast<DataType>(tensor.dtype);
  COORDD_ASSIGN_OR_RETURN(spec.op, OpOf(call));
  spec.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
  spec.root_rank = call.root;
  if (options.prescale_factor != 0) spec.prescale_factor = options.prescale_factor;
  if (options.postscale_factor != 0) spec.postscale_factor = options.postscale_factor;
  submission.input = tensor.input;
  submission.output = tensor.output;
  submission.output_capacity_bytes = tensor.output_capacity_bytes;
  submission.splits.assign(call.splits.begin(), call.splits.end());
  COORDD_ASSIGN_OR_RETURN(submission.timeout, TimeoutFromSeconds(options.timeout_seconds));
  return submission;
}

absl::Status SubmitOne(coordd_worker_t* worker, const coordd_tensor_t* tensor, const Call& call,
                       const coordd_call_options_t* options, coordd_work_t** work) {
  if (work == nullptr) return NullArgument("work");
  *work = nullptr;
  if (worker == nullptr) return NullArgument("worker");
  if (tensor == nullptr) return NullArgument("tensor");
  COORDD_ASSIGN_OR_RETURN(const coordd_tensor_t known_tensor, CopyIn(tensor, "tensor"));
  COORDD_ASSIGN_OR_RETURN(const coordd_call_options_t known_options, CopyIn(options, "options"));
  COORDD_ASSIGN_OR_RETURN(Submission submission, ToSubmission(known_tensor, call, known_options));
  void* const output = submission.output;
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<Work> submitted,
                          worker->worker->Submit(std::move(submission)));
  *work = new coordd_work{std::move(submitted), output};
  return absl::OkStatus();
}

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
  std::vector<Submission> submissions;
  std::vector<void*> outputs;
  // The caller's structures may be larger or smaller than ours: the first one's size is the stride.
  const size_t stride = tensors->struct_size;
  const auto* at = reinterpret_cast<const unsigned char*>(tensors);
  for (size_t i = 0; i < count; ++i, at += stride) {
    COORDD_ASSIGN_OR_RETURN(const coordd_tensor_t tensor,
                            CopyIn(reinterpret_cast<const coordd_tensor_t*>(at), "tensor"));
    COORDD_ASSIGN_OR_RETURN(Submission submission, ToSubmission(tensor, call, known_options));
    outputs.push_back(submission.output);
    submissions.push_back(std::move(submission));
  }
  COORDD_ASSIGN_OR_RETURN(std::vector<std::shared_ptr<Work>> submitted,
                          worker->worker->SubmitGroup(name, std::move(submissions)));
  for (size_t i = 0; i < count; ++i)
    works[i] = new coordd_work{std::move(submitted[i]), outputs[i]};
  return absl::OkStatus();
}

// Waits for `handles`; hands them over in `works` when all succeeded and the caller wants them, and
// releases them otherwise. The first error in their order.
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
    if (work != nullptr) *work = nullptr;
    coordd_work_t* handle = nullptr;
    COORDD_RETURN_IF_ERROR(SubmitOne(worker, tensor, call, options, &handle));
    return WaitForAll({handle}, work);
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

absl::Status SubmitBarrier(coordd_worker_t* worker, const char* name,
                           const coordd_call_options_t* options, coordd_work_t** work) {
  if (worker == nullptr) return NullArgument("worker");
  const std::string counted =
      name != nullptr ? std::string(name)
                      : absl::StrCat("coordd.barrier.", worker->unnamed_barriers.fetch_add(1));
  coordd_tensor_t tensor = COORDD_TENSOR_INIT;
  tensor.name = counted.c_str();
  tensor.dtype = COORDD_UINT8;
  return SubmitOne(worker, &tensor, {.kind = CollectiveKind::kBarrier}, options, work);
}

}  // namespace
}  // namespace coordd

using coordd::Async;
using coordd::AtBorder;
using coordd::Blocking;
using coordd::Call;
using coordd::CollectiveKind;
using coordd::GroupedAsync;
using coordd::GroupedBlocking;

extern "C" {

coordd_status_t coordd_allreduce_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                       coordd_op_t op, const coordd_call_options_t* options,
                                       coordd_work_t** work) {
  return Async(worker, tensor, {.kind = CollectiveKind::kAllreduce, .op = op}, options, work);
}
coordd_status_t coordd_allreduce(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                 coordd_op_t op, const coordd_call_options_t* options,
                                 coordd_work_t** work) {
  return Blocking(worker, tensor, {.kind = CollectiveKind::kAllreduce, .op = op}, options, work);
}

coordd_status_t coordd_grouped_allreduce_async(coordd_worker_t* worker, const char* name,
                                               const coordd_tensor_t* tensors, size_t count,
                                               coordd_op_t op, const coordd_call_options_t* options,
                                               coordd_work_t** works) {
  const Call call = {.kind = CollectiveKind::kAllreduce, .op = op};
  return GroupedAsync(worker, name, tensors, count, call, options, works);
}
coordd_status_t coordd_grouped_allreduce(coordd_worker_t* worker, const char* name,
                                         const coordd_tensor_t* tensors, size_t count,
                                         coordd_op_t op, const coordd_call_options_t* options,
                                         coordd_work_t** works) {
  const Call call = {.kind = CollectiveKind::kAllreduce, .op = op};
  return GroupedBlocking(worker, name, tensors, count, call, options, works);
}

coordd_status_t coordd_allgather_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                       const coordd_call_options_t* options, coordd_work_t** work) {
  return Async(worker, tensor, {.kind = CollectiveKind::kAllgather}, options, work);
}
coordd_status_t coordd_allgather(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                 const coordd_call_options_t* options, coordd_work_t** work) {
  return Blocking(worker, tensor, {.kind = CollectiveKind::kAllgather}, options, work);
}

coordd_status_t coordd_grouped_allgather_async(coordd_worker_t* worker, const char* name,
                                               const coordd_tensor_t* tensors, size_t count,
                                               const coordd_call_options_t* options,
                                               coordd_work_t** works) {
  const Call call = {.kind = CollectiveKind::kAllgather};
  return GroupedAsync(worker, name, tensors, count, call, options, works);
}
coordd_status_t coordd_grouped_allgather(coordd_worker_t* worker, const char* name,
                                         const coordd_tensor_t* tensors, size_t count,
                                         const coordd_call_options_t* options,
                                         coordd_work_t** works) {
  const Call call = {.kind = CollectiveKind::kAllgather};
  return GroupedBlocking(worker, name, tensors, count, call, options, works);
}

coordd_status_t coordd_broadcast_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                       int32_t root, const coordd_call_options_t* options,
                                       coordd_work_t** work) {
  return Async(worker, tensor, {.kind = CollectiveKind::kBroadcast, .root = root}, options, work);
}
coordd_status_t coordd_broadcast(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                 int32_t root, const coordd_call_options_t* options,
                                 coordd_work_t** work) {
  return Blocking(worker, tensor, {.kind = CollectiveKind::kBroadcast, .root = root}, options,
                  work);
}

coordd_status_t coordd_reducescatter_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                           coordd_op_t op, const coordd_call_options_t* options,
                                           coordd_work_t** work) {
  return Async(worker, tensor, {.kind = CollectiveKind::kReducescatter, .op = op}, options, work);
}
coordd_status_t coordd_reducescatter(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                     coordd_op_t op, const coordd_call_options_t* options,
                                     coordd_work_t** work) {
  return Blocking(worker, tensor, {.kind = CollectiveKind::kReducescatter, .op = op}, options,
                  work);
}

coordd_status_t coordd_alltoall_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                      const int64_t* splits, size_t num_splits,
                                      const coordd_call_options_t* options, coordd_work_t** work) {
  const Call call = {.kind = CollectiveKind::kAlltoall,
                     .splits = {splits, splits == nullptr ? 0 : num_splits}};
  return Async(worker, tensor, call, options, work);
}
coordd_status_t coordd_alltoall(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                const int64_t* splits, size_t num_splits,
                                const coordd_call_options_t* options, coordd_work_t** work) {
  const Call call = {.kind = CollectiveKind::kAlltoall,
                     .splits = {splits, splits == nullptr ? 0 : num_splits}};
  return Blocking(worker, tensor, call, options, work);
}

coordd_status_t coordd_barrier_async(coordd_worker_t* worker, const char* name,
                                     const coordd_call_options_t* options, coordd_work_t** work) {
  return AtBorder([&] { return coordd::SubmitBarrier(worker, name, options, work); });
}
coordd_status_t coordd_barrier(coordd_worker_t* worker, const char* name,
                               const coordd_call_options_t* options) {
  return AtBorder([&]() -> absl::Status {
    coordd_work_t* work = nullptr;
    COORDD_RETURN_IF_ERROR(coordd::SubmitBarrier(worker, name, options, &work));
    return coordd::WaitForAll({work}, nullptr);
  });
}

}  // extern "C"
