// The words of the field as types. Distinct ids are distinct types; the enumerators equal the
// protocol's numbers (static_asserted in proto_convert.cc), so that a cast converts.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace coordd {

// An integer with a meaning. StrongInt<RankTag> and StrongInt<GenerationTag> do not mix.
template <typename Tag, typename Value>
struct StrongInt {
  using ValueType = Value;
  Value value = 0;

  constexpr StrongInt() = default;
  constexpr explicit StrongInt(Value v) : value(v) {}
  friend constexpr auto operator<=>(const StrongInt&, const StrongInt&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const StrongInt& id) {
    return H::combine(std::move(h), id.value);
  }
};

using Rank = StrongInt<struct RankTag, int32_t>;  // index of a worker in a generation, from 0
using Generation = StrongInt<struct GenerationTag, int64_t>;  // one agreed membership; 0: none yet
using Epoch = StrongInt<struct EpochTag, int64_t>;            // one incarnation of the coordinator
using SessionId =
    StrongInt<struct SessionTag, int64_t>;  // one worker's stream to coordd, unique in an epoch
using LaneId =
    StrongInt<struct LaneTag, int32_t>;  // ordered sequence of collectives on one communicator
using ProcessSetId = StrongInt<struct ProcessSetTag, int32_t>;  // 0: all ranks

template <typename Tag, typename Value>
constexpr Value ToInt(StrongInt<Tag, Value> id) {
  return id.value;
}

// When a job's store was written (types.proto). 0 of both: never.
struct StoreVersion {
  Epoch epoch;
  int64_t number = 0;
  friend constexpr auto operator<=>(const StoreVersion&, const StoreVersion&) = default;
};

enum class DataType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kUint16 = 3,
  kInt16 = 4,
  kUint32 = 5,
  kInt32 = 6,
  kUint64 = 7,
  kInt64 = 8,
  kFloat16 = 9,
  kBfloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kBool = 13,
  kFloat8E4m3fn = 14,
  kFloat8E5m2 = 15,
};
enum class ReduceOp : uint8_t {
  kNone = 0,
  kSum = 1,
  kAverage = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5
};
enum class CollectiveKind : uint8_t {
  kAllreduce = 1,
  kAllgather = 2,
  kBroadcast = 3,
  kReducescatter = 4,
  kAlltoall = 5,
  kBarrier = 6,
  kJoin = 7,
  kReduce = 8,
  kGather = 9,
  kSend = 10,
  kReceive = 11,
};
enum class MemoryKind : uint8_t { kHost = 1, kCuda = 2 };
// What a job does when a member is lost: it ends, or the survivors form the next generation, and
// calls fail until the program takes note of it, or go on.
enum class OnFailure : uint8_t { kEnd = 1, kRaise = 2, kContinue = 3 };

inline constexpr CollectiveKind kLastCollectiveKind = CollectiveKind::kReceive;
inline constexpr DataType kLastDataType = DataType::kFloat8E5m2;

constexpr bool IsFloat8(DataType dtype) {
  return dtype == DataType::kFloat8E4m3fn || dtype == DataType::kFloat8E5m2;
}

// The size of one element, in bytes.
int64_t SizeOf(DataType dtype);

// The names in messages, metrics and command lines: "float32", "average", "allreduce", "host".
absl::string_view Name(DataType dtype);
absl::string_view Name(ReduceOp op);  // kNone: "none"
absl::string_view Name(CollectiveKind kind);
absl::string_view Name(MemoryKind memory);
absl::string_view Name(OnFailure on_failure);  // "end", "raise", "continue"
std::optional<DataType> DataTypeFromName(absl::string_view name);
std::optional<ReduceOp> ReduceOpFromName(absl::string_view name);
std::optional<CollectiveKind> CollectiveKindFromName(absl::string_view name);
std::optional<OnFailure> OnFailureFromName(absl::string_view name);

}  // namespace coordd
