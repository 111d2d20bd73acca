#include "common/protocol/types.h"

#include <array>

#include "common/base/check.h"

namespace coordd {
namespace {

struct DataTypeRow {
  DataType dtype;
  absl::string_view name;
  int64_t size_bytes;
};
constexpr std::array<DataTypeRow, 15> kDataTypes = {{
    {DataType::kUint8, "uint8", 1},
    {DataType::kInt8, "int8", 1},
    {DataType::kUint16, "uint16", 2},
    {DataType::kInt16, "int16", 2},
    {DataType::kUint32, "uint32", 4},
    {DataType::kInt32, "int32", 4},
    {DataType::kUint64, "uint64", 8},
    {DataType::kInt64, "int64", 8},
    {DataType::kFloat16, "float16", 2},
    {DataType::kBfloat16, "bfloat16", 2},
    {DataType::kFloat32, "float32", 4},
    {DataType::kFloat64, "float64", 8},
    {DataType::kBool, "bool", 1},
    {DataType::kFloat8E4m3fn, "float8_e4m3fn", 1},
    {DataType::kFloat8E5m2, "float8_e5m2", 1},
}};

constexpr std::array<absl::string_view, 6> kOps = {"none", "sum", "average",
                                                   "min",  "max", "product"};
constexpr std::array<absl::string_view, 12> kKinds = {
    "",        "allreduce", "allgather", "broadcast", "reducescatter", "alltoall",
    "barrier", "join",      "reduce",    "gather",    "send",          "receive"};

constexpr std::array<absl::string_view, 4> kOnFailure = {"", "end", "raise", "continue"};

const DataTypeRow& Row(DataType dtype) {
  const size_t index = static_cast<size_t>(dtype) - 1;
  COORDD_CHECK(index < kDataTypes.size());
  return kDataTypes[index];
}

}  // namespace

int64_t SizeOf(DataType dtype) { return Row(dtype).size_bytes; }
absl::string_view Name(DataType dtype) { return Row(dtype).name; }
absl::string_view Name(ReduceOp op) { return kOps.at(static_cast<size_t>(op)); }
absl::string_view Name(CollectiveKind kind) { return kKinds.at(static_cast<size_t>(kind)); }
absl::string_view Name(MemoryKind memory) { return memory == MemoryKind::kHost ? "host" : "cuda"; }
absl::string_view Name(OnFailure on_failure) {
  return kOnFailure.at(static_cast<size_t>(on_failure));
}

std::optional<DataType> DataTypeFromName(absl::string_view name) {
  for (const DataTypeRow& row : kDataTypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::optional<ReduceOp> ReduceOpFromName(absl::string_view name) {
  for (size_t i = 1; i < kOps.size(); ++i) {
    if (kOps[i] == name) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

std::optional<CollectiveKind> CollectiveKindFromName(absl::string_view name) {
  for (size_t i = 1; i < kKinds.size(); ++i) {
    if (kKinds[i] == name) return static_cast<CollectiveKind>(i);
  }
  return std::nullopt;
}

std::optional<OnFailure> OnFailureFromName(absl::string_view name) {
  for (size_t i = 1; i < kOnFailure.size(); ++i) {
    if (kOnFailure[i] == name) return static_cast<OnFailure>(i);
  }
  return std::nullopt;
}

}  // namespace coordd
