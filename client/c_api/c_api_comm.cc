// Comms.
#include <memory>

#include "client/c_api/c_api_internal.h"
#include "common/base/status_macros.h"
#include "worker/api/comm.h"

struct coordd_comm {
  const std::unique_ptr<coordd::Comm> comm;  // constant after construction
};

namespace coordd {
namespace {

coordd_status_t Run(coordd_comm_t* comm, const CommCall& call) {
  return AtBorder([&]() -> absl::Status {
    if (comm == nullptr) return NullArgument("comm");
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
    return comm->comm->Run(call);
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

}  // namespace
}  // namespace coordd

using coordd::CollectiveKind;
using coordd::DtypeOf;
using coordd::OpOf;

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
  return coordd::Run(
      comm, {CollectiveKind::kAllreduce, DtypeOf(dtype), OpOf(op), 0, input, output, count});
}

coordd_status_t coordd_comm_reducescatter(coordd_comm_t* comm, const void* input, void* output,
                                          int64_t count, coordd_dtype_t dtype, coordd_op_t op) {
  return coordd::Run(
      comm, {CollectiveKind::kReducescatter, DtypeOf(dtype), OpOf(op), 0, input, output, count});
}

coordd_status_t coordd_comm_broadcast(coordd_comm_t* comm, void* buffer, int64_t count,
                                      coordd_dtype_t dtype, int32_t root) {
  return coordd::Run(comm, {CollectiveKind::kBroadcast, DtypeOf(dtype), coordd::ReduceOp::kNone,
                            root, nullptr, buffer, count});
}

coordd_status_t coordd_comm_allgather(coordd_comm_t* comm, const void* input, void* output,
                                      int64_t count, coordd_dtype_t dtype) {
  return coordd::Run(comm, {CollectiveKind::kAllgather, DtypeOf(dtype), coordd::ReduceOp::kNone, 0,
                            input, output, count});
}

coordd_status_t coordd_comm_alltoall(coordd_comm_t* comm, const void* input, void* output,
                                     int64_t count, coordd_dtype_t dtype) {
  return coordd::Run(comm, {CollectiveKind::kAlltoall, DtypeOf(dtype), coordd::ReduceOp::kNone, 0,
                            input, output, count});
}

coordd_status_t coordd_comm_barrier(coordd_comm_t* comm) { return coordd::Run(comm, {}); }

}  // extern "C"
