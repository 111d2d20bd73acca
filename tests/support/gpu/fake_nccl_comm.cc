#include "tests/support/gpu/fake_nccl_comm.h"

#include <string>

#include "tests/support/gpu/fake_cuda.h"
#include "tests/support/gpu/fake_nccl_version.h"

namespace coordd {

FakeSettings& FakeNcclSettings() {
  static FakeSettings* settings =
      new FakeSettings("FAKE_NCCL", {{"init_polls", 1},
                                     {"call_polls", kFakeNcclLaunchesOnThreads},
                                     {"config_cga_cluster_size", 0},
                                     {"config_max_ctas", 0},
                                     {"config_min_ctas", 0},
                                     {"config_net_name", 0},
                                     {"config_traffic_class", 0},
                                     {"blocking", 0},
                                     {"init_never", 0},
                                     {"init_error", 0},
                                     {"id_error", 0},
                                     {"id_repeats", 0},
                                     {"register_error", 0},
                                     {"no_windows", 0},
                                     {"memory_error", 0},
                                     {"shrink_error", 0},
                                     {"split_error", 0},
                                     {"split_fails", 0},
                                     {"shrink_polls", 1},
                                     {"shrink_never", 0},
                                     {"shrink_fails", 0},
                                     {"async_error", 0},
                                     {"abort_hangs", 0},
                                     {"within", 0},
                                     {"between", 0},
                                     {"shared_device", 0}});
  return *settings;
}

namespace {

DataType TypeOf(NcclType type) {
  switch (type) {
    case NcclType::kInt8:
      return DataType::kInt8;
    case NcclType::kInt32:
      return DataType::kInt32;
    case NcclType::kUint32:
      return DataType::kUint32;
    case NcclType::kInt64:
      return DataType::kInt64;
    case NcclType::kUint64:
      return DataType::kUint64;
    case NcclType::kFloat16:
      return DataType::kFloat16;
    case NcclType::kFloat32:
      return DataType::kFloat32;
    case NcclType::kFloat64:
      return DataType::kFloat64;
    case NcclType::kBfloat16:
      return DataType::kBfloat16;
    case NcclType::kFloat8E4m3:
      return DataType::kFloat8E4m3fn;
    case NcclType::kFloat8E5m2:
      return DataType::kFloat8E5m2;
    default:
      return DataType::kUint8;
  }
}

ReduceOp OpOf(NcclOp op) {
  switch (op) {
    case NcclOp::kSum:
      return ReduceOp::kSum;
    case NcclOp::kProduct:
      return ReduceOp::kProduct;
    case NcclOp::kMax:
      return ReduceOp::kMax;
    case NcclOp::kMin:
      return ReduceOp::kMin;
    case NcclOp::kAverage:
      break;
  }
  return ReduceOp::kSum;
}

// false: aborted, or what the ranks called differs.
bool RunCollective(FakeComm& comm, const FakeCall& call) {
  const auto aborted = [&comm] { return comm.Aborted(); };
  const int kind = call.kind + (call.captured ? 100 : 0);
  const FakeOperation operation{kind,
                                static_cast<int>(call.type),
                                static_cast<int>(call.op),
                                call.peer,
                                call.count,
                                call.input_factor};
  bool equal = false;
  if (!comm.clique->Agree(comm.rank, operation, aborted, &equal)) return false;
  if (!equal) {
    BreakRule("ranks called different collectives at the same place");
    comm.error = static_cast<int>(NcclResult::kInternalError);
    return false;
  }
  const DataType dtype = TypeOf(call.type);
  const size_t bytes = call.count * SizeOfNccl(call.type);
  std::vector<std::byte> multiplied;
  // Of a reducescatter, all ranks' blocks.
  const size_t blocks = call.kind == FakeCall::kReduceScatter ? static_cast<size_t>(comm.size) : 1;
  const char* const input = Multiplied(call, dtype, bytes * blocks, &multiplied);
  auto* output = static_cast<char*>(call.output);
  FakeClique& clique = *comm.clique;
  switch (call.kind) {
    case FakeCall::kAllReduce:
      return clique.Combine(comm.rank, dtype, OpOf(call.op), 0, input, output, bytes, aborted);
    case FakeCall::kBroadcast:
      return clique.Combine(comm.rank, dtype, ReduceOp::kNone, call.peer,
                            comm.rank == call.peer ? input : nullptr, output, bytes, aborted);
    case FakeCall::kReduce:
      return clique.Combine(comm.rank, dtype, OpOf(call.op), 0, input,
                            comm.rank == call.peer ? output : nullptr, bytes, aborted);
    case FakeCall::kAllGather:
      for (int r = 0; r < comm.size; ++r) {
        if (!clique.Combine(comm.rank, dtype, ReduceOp::kNone, r, comm.rank == r ? input : nullptr,
                            output + static_cast<size_t>(r) * bytes, bytes, aborted)) {
          return false;
        }
      }
      return true;
    case FakeCall::kReduceScatter: {
      // In place, the output is a part of the input: every part is read before it is written.
      for (int r = 0; r < comm.size; ++r) {
        if (!clique.Combine(comm.rank, dtype, OpOf(call.op), 0,
                            input + static_cast<size_t>(r) * bytes,
                            comm.rank == r ? output : nullptr, bytes, aborted)) {
          return false;
        }
      }
      return true;
    }
    case FakeCall::kSend:
    case FakeCall::kRecv:
      break;
  }
  return false;
}

}  // namespace

size_t SizeOfNccl(NcclType type) { return static_cast<size_t>(SizeOf(TypeOf(type))); }

namespace {

// Room on the device, for as long as it lives. One rank launches nothing.
class FakeRoom {
 public:
  explicit FakeRoom(const FakeComm& comm) : device_(comm.size > 1 ? comm.device : -1) {
    if (device_ >= 0) fake_cuda_begin_collective(device_);
  }
  FakeRoom(const FakeRoom&) = delete;
  ~FakeRoom() {
    if (device_ >= 0) fake_cuda_end_collective(device_);
  }

 private:
  const int device_;
};

}  // namespace

void RunCalls(FakeComm& comm, const std::vector<FakeCall>& calls) {
  const FakeRoom room(comm);
  std::vector<FakeTransfer> transfers;
  for (const FakeCall& call : calls) {
    if (comm.Aborted()) return;
    const bool send = call.kind == FakeCall::kSend;
    if (send || call.kind == FakeCall::kRecv) {
      transfers.push_back({send, call.peer,
                           static_cast<char*>(send ? const_cast<void*>(call.input) : call.output),
                           call.count * SizeOfNccl(call.type)});
      continue;
    }
    if (!RunCollective(comm, call)) break;
  }
  if (!transfers.empty()) {
    comm.clique->Exchange(comm.rank, std::move(transfers), [&comm] { return comm.Aborted(); });
  }
}

}  // namespace coordd
