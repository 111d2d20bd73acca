// Comms.
#include <memory>
#include <utility>
#include <vector>

#include "client/c_api/c_api_internal.h"
#include "common/base/status_macros.h"
#include "worker/api/comm.h"

struct coordd_comm {
  const std::unique_ptr<coordd::Comm> comm;  // constant after construction
};

namespace coordd {
namespace {

absl::Status Check(coordd_comm_t* comm, const CommCall& call) {
  if (comm == nullptr) return NullArgument("comm");
  if (call.splits != nullptr && call.splits->sent.empty()) return NullArgument("input_counts");
  if (call.splits != nullptr && call.splits->received.empty()) return NullArgument("output_counts");
  const int32_t dtype = static_cast<int32_t>(call.dtype);
  if (call.kind != CollectiveKind::kBarrier &&
      (dtype < COORDD_UINT8 || dtype > COORDD_FLOAT8_E5M2)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(call.kind), ": dtype is ", dtype,
                     ": expected COORDD_UINT8 (1) to COORDD_FLOAT8_E5M2 (15)"));
  }
  const int32_t op = static_cast<int32_t>(call.op);
  if (Reduces(call.kind) && (op < COORDD_SUM || op > COORDD_PRODUCT)) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(call.kind), ": op is ", op, ": expected COORDD_SUM (1) to COORDD_PRODUCT (5)"));
  }
  return absl::OkStatus();
}

coordd_status_t Run(coordd_comm_t* comm, const CommCall& call) {
  return AtBorder([&]() -> absl::Status {
    COORDD_RETURN_IF_ERROR(Check(comm, call));
    return comm->comm->Run(call);
  });
}

coordd_status_t Start(coordd_comm_t* comm, const CommCall& call, coordd_work_t** work) {
  return AtBorder([&]() -> absl::Status {
    if (work == nullptr) return NullArgument("work");
    *work = nullptr;
    COORDD_RETURN_IF_ERROR(Check(comm, call));
    COORDD_ASSIGN_OR_RETURN(std::shared_ptr<Work> started, comm->comm->Start(call));
    *work = new coordd_work{std::move(started), call.output};
    return absl::OkStatus();
  });
}

coordd_status_t RunFor(coordd_comm_t* comm, const CommCall& call, double timeout_seconds,
                       coordd_work_t** work) {
  return AtBorder([&]() -> absl::Status {
    if (work == nullptr) return NullArgument("work");
    *work = nullptr;
    COORDD_RETURN_IF_ERROR(Check(comm, call));
    COORDD_ASSIGN_OR_RETURN(const absl::Duration most, TimeoutFromSeconds(timeout_seconds));
    COORDD_ASSIGN_OR_RETURN(std::shared_ptr<Work> running, comm->comm->RunFor(call, most));
    if (running == nullptr) return absl::OkStatus();
    *work = new coordd_work{std::move(running), call.output};
    return absl::DeadlineExceededError("the call goes on");
  });
}

coordd_status_t StartMessage(coordd_comm_t* comm, CollectiveKind kind, void* buffer, int64_t count,
                             coordd_dtype_t dtype, int32_t peer, int64_t tag,
                             coordd_work_t** work) {
  return AtBorder([&]() -> absl::Status {
    if (work == nullptr) return NullArgument("work");
    *work = nullptr;
    CommCall like;  // of which the same is asked
    like.kind = kind;
    like.dtype = static_cast<DataType>(dtype);
    COORDD_RETURN_IF_ERROR(Check(comm, like));
    const CommMessage message{peer, tag, buffer, count, like.dtype};
    COORDD_ASSIGN_OR_RETURN(std::shared_ptr<Work> started, kind == CollectiveKind::kSend
                                                               ? comm->comm->Send(message)
                                                               : comm->comm->Receive(message));
    *work = new coordd_work{std::move(started), buffer};
    return absl::OkStatus();
  });
}

// Numbers of the program that are none of ours become 0, which Run refuses.
DataType DtypeOf(coordd_dtype_t dtype) {
  return dtype < COORDD_UINT8 || dtype > COORDD_FLOAT8_E5M2 ? DataType{}
                                                            : static_cast<DataType>(dtype);
}
ReduceOp OpOf(coordd_op_t op) {
  return op < COORDD_SUM || op > COORDD_PRODUCT ? ReduceOp::kNone : static_cast<ReduceOp>(op);
}

CommCall CallOf(CollectiveKind kind, const void* input, void* output, int64_t count,
                coordd_dtype_t dtype, coordd_op_t op = 0) {
  return {kind, DtypeOf(dtype), OpOf(op), 0, input, output, count};
}
CommCall RootedCallOf(void* buffer, int64_t count, coordd_dtype_t dtype, int32_t root) {
  return {
      CollectiveKind::kBroadcast, DtypeOf(dtype), ReduceOp::kNone, root, nullptr, buffer, count};
}

// Empty: `comm` or `counts` is NULL, which Check refuses.
std::vector<int64_t> CountsOf(const coordd_comm_t* comm, const int64_t* counts) {
  if (comm == nullptr || counts == nullptr) return {};
  return {counts, counts + comm->comm->size()};
}
CommCall SplitCallOf(const coordd_comm_t* comm, const void* input, const int64_t* input_counts,
                     void* output, const int64_t* output_counts, coordd_dtype_t dtype) {
  CommCall call = CallOf(CollectiveKind::kAlltoall, input, output, 0, dtype);
  call.splits = std::make_shared<const CommSplits>(
      CommSplits{CountsOf(comm, input_counts), CountsOf(comm, output_counts)});
  return call;
}

}  // namespace
}  // namespace coordd

using coordd::CallOf;
using coordd::CollectiveKind;
using coordd::RootedCallOf;
using coordd::SplitCallOf;
using coordd::StartMessage;

extern "C" {

coordd_status_t coordd_comm_create(coordd_worker_t* worker, int32_t process_set, const char* name,
                                   double timeout_seconds, coordd_comm_t** comm) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (comm == nullptr) return coordd::NullArgument("comm");
    *comm = nullptr;
    if (worker == nullptr) return coordd::NullArgument("worker");
    if (name == nullptr) return coordd::NullArgument("name");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    COORDD_ASSIGN_OR_RETURN(
        std::unique_ptr<coordd::Comm> made,
        worker->worker->CreateComm(coordd::ProcessSetId{process_set}, name, timeout));
    *comm = new coordd_comm{std::move(made)};
    return absl::OkStatus();
  });
}

void coordd_comm_free(coordd_comm_t* comm) {
  coordd::AtBorder([&] {
    delete comm;
    return absl::OkStatus();
  });
}

int32_t coordd_comm_rank(const coordd_comm_t* comm) {
  return comm == nullptr ? -1 : comm->comm->rank();
}
int32_t coordd_comm_size(const coordd_comm_t* comm) {
  return comm == nullptr ? -1 : comm->comm->size();
}

coordd_status_t coordd_comm_allreduce(coordd_comm_t* comm, const void* input, void* output,
                                      int64_t count, coordd_dtype_t dtype, coordd_op_t op) {
  return coordd::Run(comm, CallOf(CollectiveKind::kAllreduce, input, output, count, dtype, op));
}
coordd_status_t coordd_comm_allreduce_async(coordd_comm_t* comm, const void* input, void* output,
                                            int64_t count, coordd_dtype_t dtype, coordd_op_t op,
                                            coordd_work_t** work) {
  return coordd::Start(comm, CallOf(CollectiveKind::kAllreduce, input, output, count, dtype, op),
                       work);
}
coordd_status_t coordd_comm_allreduce_for(coordd_comm_t* comm, const void* input, void* output,
                                          int64_t count, coordd_dtype_t dtype, coordd_op_t op,
                                          double timeout_seconds, coordd_work_t** work) {
  return coordd::RunFor(comm, CallOf(CollectiveKind::kAllreduce, input, output, count, dtype, op),
                        timeout_seconds, work);
}

coordd_status_t coordd_comm_reducescatter(coordd_comm_t* comm, const void* input, void* output,
                                          int64_t count, coordd_dtype_t dtype, coordd_op_t op) {
  return coordd::Run(comm, CallOf(CollectiveKind::kReducescatter, input, output, count, dtype, op));
}
coordd_status_t coordd_comm_reducescatter_async(coordd_comm_t* comm, const void* input,
                                                void* output, int64_t count, coordd_dtype_t dtype,
                                                coordd_op_t op, coordd_work_t** work) {
  return coordd::Start(
      comm, CallOf(CollectiveKind::kReducescatter, input, output, count, dtype, op), work);
}
coordd_status_t coordd_comm_reducescatter_for(coordd_comm_t* comm, const void* input, void* output,
                                              int64_t count, coordd_dtype_t dtype, coordd_op_t op,
                                              double timeout_seconds, coordd_work_t** work) {
  return coordd::RunFor(comm,
                        CallOf(CollectiveKind::kReducescatter, input, output, count, dtype, op),
                        timeout_seconds, work);
}

coordd_status_t coordd_comm_broadcast(coordd_comm_t* comm, void* buffer, int64_t count,
                                      coordd_dtype_t dtype, int32_t root) {
  return coordd::Run(comm, RootedCallOf(buffer, count, dtype, root));
}
coordd_status_t coordd_comm_broadcast_async(coordd_comm_t* comm, void* buffer, int64_t count,
                                            coordd_dtype_t dtype, int32_t root,
                                            coordd_work_t** work) {
  return coordd::Start(comm, RootedCallOf(buffer, count, dtype, root), work);
}
coordd_status_t coordd_comm_broadcast_for(coordd_comm_t* comm, void* buffer, int64_t count,
                                          coordd_dtype_t dtype, int32_t root,
                                          double timeout_seconds, coordd_work_t** work) {
  return coordd::RunFor(comm, RootedCallOf(buffer, count, dtype, root), timeout_seconds, work);
}

coordd_status_t coordd_comm_allgather(coordd_comm_t* comm, const void* input, void* output,
                                      int64_t count, coordd_dtype_t dtype) {
  return coordd::Run(comm, CallOf(CollectiveKind::kAllgather, input, output, count, dtype));
}
coordd_status_t coordd_comm_allgather_async(coordd_comm_t* comm, const void* input, void* output,
                                            int64_t count, coordd_dtype_t dtype,
                                            coordd_work_t** work) {
  return coordd::Start(comm, CallOf(CollectiveKind::kAllgather, input, output, count, dtype), work);
}
coordd_status_t coordd_comm_allgather_for(coordd_comm_t* comm, const void* input, void* output,
                                          int64_t count, coordd_dtype_t dtype,
                                          double timeout_seconds, coordd_work_t** work) {
  return coordd::RunFor(comm, CallOf(CollectiveKind::kAllgather, input, output, count, dtype),
                        timeout_seconds, work);
}

coordd_status_t coordd_comm_alltoall(coordd_comm_t* comm, const void* input, void* output,
                                     int64_t count, coordd_dtype_t dtype) {
  return coordd::Run(comm, CallOf(CollectiveKind::kAlltoall, input, output, count, dtype));
}
coordd_status_t coordd_comm_alltoall_async(coordd_comm_t* comm, const void* input, void* output,
                                           int64_t count, coordd_dtype_t dtype,
                                           coordd_work_t** work) {
  return coordd::Start(comm, CallOf(CollectiveKind::kAlltoall, input, output, count, dtype), work);
}
coordd_status_t coordd_comm_alltoall_for(coordd_comm_t* comm, const void* input, void* output,
                                         int64_t count, coordd_dtype_t dtype,
                                         double timeout_seconds, coordd_work_t** work) {
  return coordd::RunFor(comm, CallOf(CollectiveKind::kAlltoall, input, output, count, dtype),
                        timeout_seconds, work);
}

coordd_status_t coordd_comm_alltoallv(coordd_comm_t* comm, const void* input,
                                      const int64_t* input_counts, void* output,
                                      const int64_t* output_counts, coordd_dtype_t dtype) {
  return coordd::Run(comm, SplitCallOf(comm, input, input_counts, output, output_counts, dtype));
}
coordd_status_t coordd_comm_alltoallv_async(coordd_comm_t* comm, const void* input,
                                            const int64_t* input_counts, void* output,
                                            const int64_t* output_counts, coordd_dtype_t dtype,
                                            coordd_work_t** work) {
  return coordd::Start(comm, SplitCallOf(comm, input, input_counts, output, output_counts, dtype),
                       work);
}
coordd_status_t coordd_comm_alltoallv_for(coordd_comm_t* comm, const void* input,
                                          const int64_t* input_counts, void* output,
                                          const int64_t* output_counts, coordd_dtype_t dtype,
                                          double timeout_seconds, coordd_work_t** work) {
  return coordd::RunFor(comm, SplitCallOf(comm, input, input_counts, output, output_counts, dtype),
                        timeout_seconds, work);
}

coordd_status_t coordd_comm_barrier(coordd_comm_t* comm) { return coordd::Run(comm, {}); }
coordd_status_t coordd_comm_barrier_async(coordd_comm_t* comm, coordd_work_t** work) {
  return coordd::Start(comm, {}, work);
}
coordd_status_t coordd_comm_barrier_for(coordd_comm_t* comm, double timeout_seconds,
                                        coordd_work_t** work) {
  return coordd::RunFor(comm, {}, timeout_seconds, work);
}

coordd_status_t coordd_comm_send_async(coordd_comm_t* comm, const void* buffer, int64_t count,
                                       coordd_dtype_t dtype, int32_t destination, int64_t tag,
                                       coordd_work_t** work) {
  return StartMessage(comm, CollectiveKind::kSend, const_cast<void*>(buffer), count, dtype,
                      destination, tag, work);
}
coordd_status_t coordd_comm_receive_async(coordd_comm_t* comm, void* buffer, int64_t count,
                                          coordd_dtype_t dtype, int32_t source, int64_t tag,
                                          coordd_work_t** work) {
  return StartMessage(comm, CollectiveKind::kReceive, buffer, count, dtype, source, tag, work);
}
coordd_status_t coordd_comm_withdraw(coordd_comm_t* comm, const coordd_work_t* receive) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (comm == nullptr) return coordd::NullArgument("comm");
    if (receive == nullptr) return coordd::NullArgument("receive");
    if (receive->InForkedChild()) return coordd::ForkedChild("the work");
    comm->comm->Withdraw(*receive->work);
    return absl::OkStatus();
  });
}

}  // extern "C"
