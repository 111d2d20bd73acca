// The part of NCCL that coordd calls: types, numbers and functions as its documentation gives them,
// in our words, so that no vendor header is needed to build. tests/worker/gpu/nccl/nccl_abi_test.cc
// compares with the vendor's header where there is one. (io)
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/environment.h"
#include "common/machine/nccl_versions.h"
#include "common/protocol/types.h"
#include "worker/gpu/cuda/cuda_api.h"

namespace coordd {

using NcclComm = struct NcclCommHandle*;
using NcclWindow = struct NcclWindowHandle*;
inline constexpr int kNcclWindowSymmetric = 1;
inline constexpr int kNcclRevokeDefault = 0;
inline constexpr int kNcclShrinkDefault = 0;  // nothing is under way on the parent

// The key to a communicator: whoever has it can join. Never printed.
struct NcclUniqueId {
  char bytes[128];
};

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};
enum class NcclType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8E4m3 = 10,  // since 2.24
  kFloat8E5m2 = 11,
};
// Above these: operators that ncclRedOpCreatePreMulSum has made.
enum class NcclOp : int { kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4 };
inline constexpr int kNcclScalarHostImmediate = 1;  // the scalar is read during the call

// The configuration of 2.18, which later versions take for what it says it is, but for what they
// have put behind it: 2.26 put the traffic class there, and up to 2.26.5 takes it from a
// configuration of any version that is as large. Before, these four bytes were padding, which
// nobody had written. 2.27 put a name behind it, which is read of every configuration that is large
// enough: so one without a name ends before it.
struct NcclConfig {
  static constexpr size_t kSizeWithoutName = 48;

  size_t size = kSizeWithoutName;
  unsigned magic = 0xcafebeef;
  unsigned version = kNcclVersionMin;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* name = nullptr;  // as long as the communicator; with sizeof(NcclConfig) as size

  static constexpr int kUndefined = -2147483647 - 1;
};

// What NCCL is given has no byte that nobody writes.
static_assert(std::has_unique_object_representations_v<NcclConfig>);
static_assert(std::has_unique_object_representations_v<NcclUniqueId>);

// Named as NCCL's functions, less "nccl".
struct NcclFunctions {
  NcclResult (*GetVersion)(int* version) = nullptr;
  const char* (*GetErrorString)(NcclResult result) = nullptr;
  const char* (*GetLastError)(NcclComm comm) = nullptr;
  NcclResult (*GetUniqueId)(NcclUniqueId* id) = nullptr;
  NcclResult (*CommInitRankConfig)(NcclComm* comm, int size, NcclUniqueId id, int rank,
                                   NcclConfig* config) = nullptr;
  NcclResult (*CommFinalize)(NcclComm comm) = nullptr;
  NcclResult (*CommDestroy)(NcclComm comm) = nullptr;
  NcclResult (*CommAbort)(NcclComm comm) = nullptr;
  NcclResult (*CommGetAsyncError)(NcclComm comm, NcclResult* error) = nullptr;
  NcclResult (*AllReduce)(const void* input, void* output, size_t count, NcclType type, NcclOp op,
                          NcclComm comm, CudaStream stream) = nullptr;
  NcclResult (*Broadcast)(const void* input, void* output, size_t count, NcclType type, int root,
                          NcclComm comm, CudaStream stream) = nullptr;
  NcclResult (*Reduce)(const void* input, void* output, size_t count, NcclType type, NcclOp op,
                       int root, NcclComm comm, CudaStream stream) = nullptr;
  NcclResult (*AllGather)(const void* input, void* output, size_t input_count, NcclType type,
                          NcclComm comm, CudaStream stream) = nullptr;
  NcclResult (*ReduceScatter)(const void* input, void* output, size_t output_count, NcclType type,
                              NcclOp op, NcclComm comm, CudaStream stream) = nullptr;
  NcclResult (*Send)(const void* input, size_t count, NcclType type, int peer, NcclComm comm,
                     CudaStream stream) = nullptr;
  NcclResult (*Recv)(void* output, size_t count, NcclType type, int peer, NcclComm comm,
                     CudaStream stream) = nullptr;
  // A sum of inputs that are multiplied with the scalar, of the type, first.
  NcclResult (*RedOpCreatePreMulSum)(NcclOp* op, void* scalar, NcclType type, int residence,
                                     NcclComm comm) = nullptr;
  NcclResult (*RedOpDestroy)(NcclOp op, NcclComm comm) = nullptr;
  NcclResult (*GroupStart)() = nullptr;
  NcclResult (*GroupEnd)() = nullptr;

  // Optional (kNcclLaterFunctions): nullptr in versions before the one that is noted.
  NcclResult (*CommSplit)(NcclComm comm, int color, int key, NcclComm* split,
                          NcclConfig* config) = nullptr;  // 2.18
  NcclResult (*CommInitRankScalable)(NcclComm* comm, int size, int rank, int ids, NcclUniqueId* id,
                                     NcclConfig* config) = nullptr;  // 2.23
  NcclResult (*CommRegister)(NcclComm comm, void* buffer, size_t size_bytes,
                             void** handle) = nullptr;                  // 2.19
  NcclResult (*CommDeregister)(NcclComm comm, void* handle) = nullptr;  // 2.19
  NcclResult (*MemAlloc)(void** pointer, size_t size_bytes) = nullptr;  // 2.19
  NcclResult (*MemFree)(void* pointer) = nullptr;                       // 2.19
  NcclResult (*CommWindowRegister)(NcclComm comm, void* buffer, size_t size_bytes,
                                   NcclWindow* window, int flags) = nullptr;       // 2.27
  NcclResult (*CommWindowDeregister)(NcclComm comm, NcclWindow window) = nullptr;  // 2.27
  NcclResult (*CommShrink)(NcclComm comm, int* excluded, int excluded_count, NcclComm* shrunk,
                           NcclConfig* config, int flags) = nullptr;  // 2.27
  NcclResult (*CommRevoke)(NcclComm comm, int flags) = nullptr;       // 2.28.7
};

struct NcclLibrary {
  NcclFunctions functions;
  int version = 0;                   // 22809 is 2.28.9
  std::vector<std::string> missing;  // optional functions that this version lacks, by symbol
};

// The copy already in this process, else COORDD_NCCL_LIBRARY, else the system's. What is opened
// stays open. NOT_FOUND: the loader's sentence, with the variable when that names it, or what a
// library lacks. FAILED_PRECONDITION: older than kNcclVersionMin, or NCCL_COMM_BLOCKING=1, which
// would make all communicators blocking. Warns of a variable that names another one than is there,
// and of a version before kNcclVersionAborts.
absl::StatusOr<NcclLibrary> LoadNccl(const Environment& environment);

// How NCCL is told to reduce `op` over `dtype`; nullopt: no version can (16-bit integers). A bool
// is a byte of 0 or 1: its sum is the maximum, its product the minimum. Not every one can that for
// float8: NcclReducesFloat8.
struct NcclReduction {
  NcclType type;
  NcclOp op;
};
std::optional<NcclReduction> NcclReductionOf(DataType dtype, ReduceOp op);

// Whether what non-blocking communicators are given is launched on a thread that NCCL makes for
// each call (since 2.23.4), and it can make one of them that launches in place.
inline bool NcclLaunchesOnThreads(const NcclLibrary& nccl) {
  constexpr int kVersion = 22304;
  return nccl.version >= kVersion && nccl.functions.CommSplit != nullptr;
}

// Whether memory can be registered with a communicator (2.19).
inline bool NcclRegisters(const NcclFunctions& nccl) {
  return nccl.CommRegister != nullptr && nccl.CommDeregister != nullptr;
}

// Whether a library of `version` does so on GPUs of this compute capability: since 2.24, and since
// Hopper. (It moves them, as bytes, everywhere.)
inline bool NcclReducesFloat8(int version, int capability_major) {
  return version >= kNcclVersionFloat8 && capability_major >= 9;
}

}  // namespace coordd
