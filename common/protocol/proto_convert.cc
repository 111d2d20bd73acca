#include "common/protocol/proto_convert.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

static_assert(static_cast<int>(DataType::kUint8) == v1::DATA_TYPE_UINT8);
static_assert(static_cast<int>(DataType::kFloat16) == v1::DATA_TYPE_FLOAT16);
static_assert(static_cast<int>(DataType::kBool) == v1::DATA_TYPE_BOOL);
static_assert(static_cast<int>(kLastDataType) == v1::DATA_TYPE_FLOAT8_E5M2);
static_assert(static_cast<int>(ReduceOp::kSum) == v1::REDUCE_OP_SUM);
static_assert(static_cast<int>(ReduceOp::kProduct) == v1::REDUCE_OP_PRODUCT);
static_assert(static_cast<int>(CollectiveKind::kAllreduce) == v1::COLLECTIVE_KIND_ALLREDUCE);
static_assert(static_cast<int>(CollectiveKind::kBarrier) == v1::COLLECTIVE_KIND_BARRIER);
static_assert(static_cast<int>(CollectiveKind::kReceive) == v1::COLLECTIVE_KIND_RECEIVE);
static_assert(static_cast<int>(MemoryKind::kHost) == v1::MEMORY_KIND_HOST);
static_assert(static_cast<int>(MemoryKind::kCuda) == v1::MEMORY_KIND_CUDA);
static_assert(static_cast<int>(OnFailure::kEnd) == v1::ON_FAILURE_END);
static_assert(static_cast<int>(OnFailure::kContinue) == v1::ON_FAILURE_CONTINUE);

absl::Status Unknown(const v1::TensorSpec& proto, absl::string_view what, int value) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", proto.name(), ": ", what, " ", value,
                                                 " is not known to this version"));
}

}  // namespace

OnFailure FromProto(v1::OnFailure on_failure) {
  const bool said = on_failure != v1::ON_FAILURE_UNSPECIFIED;
  return said ? static_cast<OnFailure>(on_failure) : OnFailure::kEnd;
}

absl::StatusOr<TensorSpec> FromProto(const v1::TensorSpec& proto) {
  if (proto.kind() < v1::COLLECTIVE_KIND_ALLREDUCE || proto.kind() > v1::COLLECTIVE_KIND_RECEIVE) {
    return Unknown(proto, "kind", proto.kind());
  }
  if (proto.dtype() < v1::DATA_TYPE_UINT8 || proto.dtype() > v1::DATA_TYPE_FLOAT8_E5M2)
    return Unknown(proto, "dtype", proto.dtype());
  if (proto.op() < v1::REDUCE_OP_UNSPECIFIED || proto.op() > v1::REDUCE_OP_PRODUCT)
    return Unknown(proto, "op", proto.op());
  if (proto.memory() < v1::MEMORY_KIND_HOST || proto.memory() > v1::MEMORY_KIND_CUDA)
    return Unknown(proto, "memory", proto.memory());
  if (proto.shape_size() > kMaxDimensions)
    return Unknown(proto, "number of dimensions", proto.shape_size());
  TensorSpec spec;
  spec.name = proto.name();
  spec.kind = static_cast<CollectiveKind>(proto.kind());
  spec.dtype = static_cast<DataType>(proto.dtype());
  spec.op = static_cast<ReduceOp>(proto.op());
  spec.shape.assign(proto.shape().begin(), proto.shape().end());
  spec.root_rank = proto.root_rank();
  spec.prescale_factor = proto.prescale_factor() == 0 ? 1.0 : proto.prescale_factor();
  spec.postscale_factor = proto.postscale_factor() == 0 ? 1.0 : proto.postscale_factor();
  spec.process_set = ProcessSetId{proto.process_set()};
  spec.group = proto.group();
  spec.group_size = proto.group_size();
  spec.memory = static_cast<MemoryKind>(proto.memory());
  spec.peer_rank = proto.peer_rank();
  spec.refused = proto.refused();
  return spec;
}

void ToProto(const TensorSpec& spec, v1::TensorSpec* proto) {
  proto->set_name(spec.name);
  proto->set_kind(static_cast<v1::CollectiveKind>(spec.kind));
  proto->set_dtype(static_cast<v1::DataType>(spec.dtype));
  proto->set_op(static_cast<v1::ReduceOp>(spec.op));
  proto->mutable_shape()->Assign(spec.shape.begin(), spec.shape.end());
  proto->set_root_rank(spec.root_rank);
  if (spec.prescale_factor != 1.0) proto->set_prescale_factor(spec.prescale_factor);
  if (spec.postscale_factor != 1.0) proto->set_postscale_factor(spec.postscale_factor);
  proto->set_process_set(ToInt(spec.process_set));
  proto->set_group(spec.group);
  proto->set_group_size(spec.group_size);
  proto->set_memory(static_cast<v1::MemoryKind>(spec.memory));
  proto->set_peer_rank(spec.peer_rank);
  proto->set_refused(spec.refused);
}

absl::Duration FromProto(const google::protobuf::Duration& proto) {
  return absl::Seconds(proto.seconds()) + absl::Nanoseconds(proto.nanos());
}

void ToProto(absl::Duration duration, google::protobuf::Duration* proto) {
  const absl::Duration most = absl::Seconds(int64_t{315576000000});  // duration.proto's bound
  absl::Duration rest = std::clamp(duration, -most, most);
  proto->set_seconds(absl::IDivDuration(rest, absl::Seconds(1), &rest));
  proto->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

StoreVersion FromProto(const v1::StoreVersion& proto) {
  return {Epoch{proto.epoch()}, proto.number()};
}

void ToProto(const StoreVersion& version, v1::StoreVersion* proto) {
  proto->set_epoch(ToInt(version.epoch));
  proto->set_number(version.number);
}

}  // namespace coordd
