// The collectives in which every rank gets a result.
#include "client/c_api/c_api_submit.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace coordd {
namespace {

absl::Status SubmitBarrier(coordd_worker_t* worker, const char* name,
                           const coordd_call_options_t* options, coordd_work_t** work,
                           absl::Duration wait = absl::ZeroDuration()) {
  if (worker == nullptr) return NullArgument("worker");
  COORDD_ASSIGN_OR_RETURN(const coordd_call_options_t known, CopyIn(options, "options"));
  const std::string counted =
      name != nullptr
          ? std::string(name)
          : absl::StrCat("coordd.barrier.", worker->CountUnnamedBarrier(known.process_set));
  coordd_tensor_t tensor = COORDD_TENSOR_INIT;
  tensor.name = counted.c_str();
  tensor.dtype = COORDD_UINT8;
  return SubmitOne(worker, &tensor, {.kind = CollectiveKind::kBarrier}, options, work, wait);
}

absl::Status Refuse(coordd_worker_t* worker, const char* group, const coordd_tensor_t* tensors,
                    size_t count, const char* why, const coordd_call_options_t* options,
                    coordd_work_t** works) {
  if (why == nullptr) return NullArgument("why");
  const std::string reason = ShortenedText(why, static_cast<size_t>(kMaxRefusalBytes));
  const Call call = {.kind = CollectiveKind::kBarrier,
                     .refused = reason.empty() ? "for no reason" : absl::string_view(reason)};
  if (group != nullptr) return SubmitMany(worker, group, tensors, count, call, options, works);
  if (count != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("refused without a group: ", count, " tensors, expected 1"));
  }
  return SubmitOne(worker, tensors, call, options, works);
}

}  // namespace
}  // namespace coordd

using coordd::Async;
using coordd::AtBorder;
using coordd::Blocking;
using coordd::BlockingFor;
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
coordd_status_t coordd_allreduce_for(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                     coordd_op_t op, const coordd_call_options_t* options,
                                     double timeout_seconds, coordd_work_t** work) {
  const Call call = {.kind = CollectiveKind::kAllreduce, .op = op};
  return BlockingFor(worker, tensor, call, options, timeout_seconds, work);
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
  return Async(worker, tensor, {.kind = CollectiveKind::kBroadcast, .rank = root}, options, work);
}
coordd_status_t coordd_broadcast(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                 int32_t root, const coordd_call_options_t* options,
                                 coordd_work_t** work) {
  return Blocking(worker, tensor, {.kind = CollectiveKind::kBroadcast, .rank = root}, options,
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

coordd_status_t coordd_grouped_reducescatter_async(coordd_worker_t* worker, const char* name,
                                                   const coordd_tensor_t* tensors, size_t count,
                                                   coordd_op_t op,
                                                   const coordd_call_options_t* options,
                                                   coordd_work_t** works) {
  const Call call = {.kind = CollectiveKind::kReducescatter, .op = op};
  return GroupedAsync(worker, name, tensors, count, call, options, works);
}
coordd_status_t coordd_grouped_reducescatter(coordd_worker_t* worker, const char* name,
                                             const coordd_tensor_t* tensors, size_t count,
                                             coordd_op_t op, const coordd_call_options_t* options,
                                             coordd_work_t** works) {
  const Call call = {.kind = CollectiveKind::kReducescatter, .op = op};
  return GroupedBlocking(worker, name, tensors, count, call, options, works);
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

coordd_status_t coordd_refuse_async(coordd_worker_t* worker, const char* group,
                                    const coordd_tensor_t* tensors, size_t count, const char* why,
                                    const coordd_call_options_t* options, coordd_work_t** works) {
  return AtBorder(
      [&] { return coordd::Refuse(worker, group, tensors, count, why, options, works); });
}

coordd_status_t coordd_barrier_async(coordd_worker_t* worker, const char* name,
                                     const coordd_call_options_t* options, coordd_work_t** work) {
  return AtBorder([&] { return coordd::SubmitBarrier(worker, name, options, work); });
}
coordd_status_t coordd_barrier(coordd_worker_t* worker, const char* name,
                               const coordd_call_options_t* options) {
  return AtBorder([&]() -> absl::Status {
    coordd_work_t* work = nullptr;
    COORDD_RETURN_IF_ERROR(
        coordd::SubmitBarrier(worker, name, options, &work, absl::InfiniteDuration()));
    return coordd::WaitForAll({work}, nullptr);
  });
}

}  // extern "C"
