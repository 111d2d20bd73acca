#include "worker/gpu/nccl/nccl_api.h"

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/dynamic_library.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/machine/build_info.h"
#include "worker/base/function_table.h"

namespace coordd {
namespace {

// A variable of NCCL's own, which overrides what a program configures.
constexpr char kBlockingVariable[] = "NCCL_COMM_BLOCKING";

absl::Status CheckBlocking(const Environment& environment) {
  const auto blocking = environment.find(kBlockingVariable);
  if (blocking == environment.end() || std::strtol(blocking->second.c_str(), nullptr, 0) != 1)
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      kBlockingVariable, "=", blocking->second,
      " makes NCCL's communicators blocking, expected 0, or unset: one that waits for a lost rank "
      "could not be given up"));
}

// Of two handles of one library the functions are the same.
bool IsSame(const DynamicLibrary& a, const DynamicLibrary& b) {
  constexpr char kAny[] = "ncclGetVersion";
  return a.Function<void()>(kAny) == b.Function<void()>(kAny);
}

// Where the process has loaded another one than the variable names: what that is.
std::string NamedInVain(const Environment& environment) {
  const auto named = environment.find(kNcclVariable);
  if (named == environment.end() || named->second.empty()) return "";
  const auto loaded = DynamicLibrary::OpenLoaded(kNcclLibrary);
  if (!loaded.ok()) return "";
  const auto same = DynamicLibrary::OpenLoaded(named->second);
  return same.ok() && IsSame(*same, *loaded) ? "" : named->second;
}

absl::StatusOr<DynamicLibrary> OpenNccl(const Environment& environment) {
  if (auto loaded = DynamicLibrary::OpenLoaded(kNcclLibrary); loaded.ok()) return loaded;
  const auto named = environment.find(kNcclVariable);
  if (named == environment.end() || named->second.empty())
    return DynamicLibrary::Open(kNcclLibrary);
  auto opened = DynamicLibrary::Open(named->second);
  if (opened.ok()) return opened;
  return absl::NotFoundError(absl::StrCat(kNcclVariable, ": ", opened.status().message()));
}

FunctionTable FillTable(const DynamicLibrary& library, NcclFunctions& nccl) {
  FunctionTable table(library);
  table.Required(nccl.GetVersion, "ncclGetVersion");
  table.Required(nccl.GetErrorString, "ncclGetErrorString");
  table.Required(nccl.GetLastError, "ncclGetLastError");
  table.Required(nccl.GetUniqueId, "ncclGetUniqueId");
  table.Required(nccl.CommInitRankConfig, "ncclCommInitRankConfig");
  table.Required(nccl.CommFinalize, "ncclCommFinalize");
  table.Required(nccl.CommDestroy, "ncclCommDestroy");
  table.Required(nccl.CommAbort, "ncclCommAbort");
  table.Required(nccl.CommGetAsyncError, "ncclCommGetAsyncError");
  table.Required(nccl.AllReduce, "ncclAllReduce");
  table.Required(nccl.Broadcast, "ncclBroadcast");
  table.Required(nccl.Reduce, "ncclReduce");
  table.Required(nccl.AllGather, "ncclAllGather");
  table.Required(nccl.ReduceScatter, "ncclReduceScatter");
  table.Required(nccl.Send, "ncclSend");
  table.Required(nccl.Recv, "ncclRecv");
  table.Required(nccl.RedOpCreatePreMulSum, "ncclRedOpCreatePreMulSum");
  table.Required(nccl.RedOpDestroy, "ncclRedOpDestroy");
  table.Required(nccl.GroupStart, "ncclGroupStart");
  table.Required(nccl.GroupEnd, "ncclGroupEnd");
  table.Optional(nccl.CommInitRankScalable, "ncclCommInitRankScalable");
  table.Optional(nccl.CommRegister, "ncclCommRegister");
  table.Optional(nccl.CommDeregister, "ncclCommDeregister");
  table.Optional(nccl.MemAlloc, "ncclMemAlloc");
  table.Optional(nccl.MemFree, "ncclMemFree");
  table.Optional(nccl.CommWindowRegister, "ncclCommWindowRegister");
  table.Optional(nccl.CommWindowDeregister, "ncclCommWindowDeregister");
  table.Optional(nccl.CommSplit, "ncclCommSplit");
  table.Optional(nccl.CommShrink, "ncclCommShrink");
  table.Optional(nccl.CommRevoke, "ncclCommRevoke");
  return table;
}

}  // namespace

absl::StatusOr<NcclLibrary> LoadNccl(const Environment& environment) {
  COORDD_RETURN_IF_ERROR(CheckBlocking(environment));
  const std::string in_vain = NamedInVain(environment);
  COORDD_ASSIGN_OR_RETURN(DynamicLibrary opened, OpenNccl(environment));
  NcclLibrary library;
  const FunctionTable table = FillTable(opened, library.functions);
  // The version first: of a library that is too old, it says more than what it lacks.
  if (library.functions.GetVersion != nullptr &&
      library.functions.GetVersion(&library.version) == NcclResult::kSuccess &&
      library.version < kNcclVersionMin) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL is ", NcclVersionText(library.version), ", expected ",
                     NcclVersionText(kNcclVersionMin), " or later"));
  }
  if (!table.missing_required().empty()) {
    return absl::NotFoundError(
        absl::StrCat("NCCL has no ", absl::StrJoin(table.missing_required(), ", ")));
  }
  if (library.version == 0) return absl::UnavailableError("ncclGetVersion failed");
  library.missing = table.missing_optional();
  if (!in_vain.empty()) {
    COORDD_LOG(kWarning, kNcclVariable, " names ", in_vain,
               ", but the copy that this process has loaded already is used: NCCL ",
               NcclVersionText(library.version));
  }
  if (library.version < kNcclVersionAborts) {
    COORDD_LOG(kWarning, "NCCL is ", NcclVersionText(library.version), ", expected ",
               NcclVersionText(kNcclVersionAborts),
               " or later: before, ncclCommAbort can hang when a rank is lost");
  }
  return library;
}

std::optional<NcclReduction> NcclReductionOf(DataType dtype, ReduceOp op) {
  NcclReduction reduction{NcclType::kUint8, NcclOp::kSum};
  switch (op) {
    case ReduceOp::kSum:
      reduction.op = dtype == DataType::kBool ? NcclOp::kMax : NcclOp::kSum;
      break;
    case ReduceOp::kProduct:
      reduction.op = dtype == DataType::kBool ? NcclOp::kMin : NcclOp::kProduct;
      break;
    case ReduceOp::kMin:
      reduction.op = NcclOp::kMin;
      break;
    case ReduceOp::kMax:
      reduction.op = NcclOp::kMax;
      break;
    case ReduceOp::kNone:
    case ReduceOp::kAverage:
      return std::nullopt;
  }
  switch (dtype) {
    case DataType::kUint8:
    case DataType::kBool:
      reduction.type = NcclType::kUint8;
      return reduction;
    case DataType::kInt8:
      reduction.type = NcclType::kInt8;
      return reduction;
    case DataType::kUint32:
      reduction.type = NcclType::kUint32;
      return reduction;
    case DataType::kInt32:
      reduction.type = NcclType::kInt32;
      return reduction;
    case DataType::kUint64:
      reduction.type = NcclType::kUint64;
      return reduction;
    case DataType::kInt64:
      reduction.type = NcclType::kInt64;
      return reduction;
    case DataType::kFloat16:
      reduction.type = NcclType::kFloat16;
      return reduction;
    case DataType::kBfloat16:
      reduction.type = NcclType::kBfloat16;
      return reduction;
    case DataType::kFloat32:
      reduction.type = NcclType::kFloat32;
      return reduction;
    case DataType::kFloat64:
      reduction.type = NcclType::kFloat64;
      return reduction;
    case DataType::kFloat8E4m3fn:
      reduction.type = NcclType::kFloat8E4m3;
      return reduction;
    case DataType::kFloat8E5m2:
      reduction.type = NcclType::kFloat8E5m2;
      return reduction;
    case DataType::kUint16:
    case DataType::kInt16:
      break;
  }
  return std::nullopt;
}

}  // namespace coordd
