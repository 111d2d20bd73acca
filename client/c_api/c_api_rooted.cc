// What is for one rank or between two, and the join.
#include <cstring>

#include "client/c_api/c_api_submit.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

absl::Status SubmitJoin(coordd_worker_t* worker, const coordd_call_options_t* options,
                        coordd_work_t** work) {
  coordd_tensor_t tensor = COORDD_TENSOR_INIT;
  tensor.name = kJoinName;
  tensor.dtype = COORDD_INT32;  // of its result, a rank
  return SubmitOne(worker, &tensor, {.kind = CollectiveKind::kJoin}, options, work);
}

}  // namespace
}  // namespace coordd

using coordd::Async;
using coordd::AtBorder;
using coordd::Blocking;
using coordd::Call;
using coordd::CollectiveKind;

extern "C" {

coordd_status_t coordd_reduce_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                    int32_t root, coordd_op_t op,
                                    const coordd_call_options_t* options, coordd_work_t** work) {
  const Call call = {.kind = CollectiveKind::kReduce, .op = op, .rank = root};
  return Async(worker, tensor, call, options, work);
}
coordd_status_t coordd_reduce(coordd_worker_t* worker, const coordd_tensor_t* tensor, int32_t root,
                              coordd_op_t op, const coordd_call_options_t* options,
                              coordd_work_t** work) {
  const Call call = {.kind = CollectiveKind::kReduce, .op = op, .rank = root};
  return Blocking(worker, tensor, call, options, work);
}

coordd_status_t coordd_gather_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                    int32_t root, const coordd_call_options_t* options,
                                    coordd_work_t** work) {
  return Async(worker, tensor, {.kind = CollectiveKind::kGather, .rank = root}, options, work);
}
coordd_status_t coordd_gather(coordd_worker_t* worker, const coordd_tensor_t* tensor, int32_t root,
                              const coordd_call_options_t* options, coordd_work_t** work) {
  return Blocking(worker, tensor, {.kind = CollectiveKind::kGather, .rank = root}, options, work);
}

coordd_status_t coordd_send_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                  int32_t destination, const coordd_call_options_t* options,
                                  coordd_work_t** work) {
  return Async(worker, tensor, {.kind = CollectiveKind::kSend, .rank = destination}, options, work);
}
coordd_status_t coordd_send(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                            int32_t destination, const coordd_call_options_t* options,
                            coordd_work_t** work) {
  return Blocking(worker, tensor, {.kind = CollectiveKind::kSend, .rank = destination}, options,
                  work);
}

coordd_status_t coordd_receive_async(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                                     int32_t source, const coordd_call_options_t* options,
                                     coordd_work_t** work) {
  return Async(worker, tensor, {.kind = CollectiveKind::kReceive, .rank = source}, options, work);
}
coordd_status_t coordd_receive(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                               int32_t source, const coordd_call_options_t* options,
                               coordd_work_t** work) {
  return Blocking(worker, tensor, {.kind = CollectiveKind::kReceive, .rank = source}, options,
                  work);
}

coordd_status_t coordd_join_async(coordd_worker_t* worker, const coordd_call_options_t* options,
                                  coordd_work_t** work) {
  return AtBorder([&] { return coordd::SubmitJoin(worker, options, work); });
}
coordd_status_t coordd_join(coordd_worker_t* worker, const coordd_call_options_t* options,
                            int32_t* last_rank) {
  return AtBorder([&]() -> absl::Status {
    coordd_work_t* handle = nullptr;
    COORDD_RETURN_IF_ERROR(coordd::SubmitJoin(worker, options, &handle));
    coordd_work_t* work = nullptr;
    COORDD_RETURN_IF_ERROR(coordd::WaitForAll({handle}, &work));
    if (last_rank != nullptr)
      std::memcpy(last_rank, work->work->result().owned_output.get(), sizeof(*last_rank));
    coordd_work_release(work);
    return absl::OkStatus();
  });
}

}  // extern "C"
