#include "common/protocol/proto_convert.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TensorSpec FullSpec() {
  TensorSpec spec;
  spec.name = "layer3.weight";
  spec.kind = CollectiveKind::kAllreduce;
  spec.dtype = DataType::kBfloat16;
  spec.op = ReduceOp::kAverage;
  spec.shape = {64, 3, 7, 7};
  spec.prescale_factor = 0.5;
  spec.postscale_factor = 3.0;
  spec.process_set = ProcessSetId{2};
  spec.group = "gradients";
  spec.group_size = 12;
  spec.memory = MemoryKind::kCuda;
  spec.peer_rank = 3;
  return spec;
}

v1::TensorSpec Encoded(const TensorSpec& spec) {
  v1::TensorSpec proto;
  ToProto(spec, &proto);
  return proto;
}

TEST(ProtoConvert, DecodesWhatItEncoded) {
  EXPECT_THAT(FromProto(Encoded(FullSpec())), IsOkAndHolds(FullSpec()));
}

TEST(ProtoConvert, DecodesTheSmallestSpec) {
  TensorSpec barrier;
  barrier.name = "b";
  barrier.kind = CollectiveKind::kBarrier;
  EXPECT_THAT(FromProto(Encoded(barrier)), IsOkAndHolds(barrier));
}

TEST(ProtoConvert, LeavesFactorsOfOneOffTheWire) {
  TensorSpec spec = FullSpec();
  spec.prescale_factor = spec.postscale_factor = 1.0;
  EXPECT_EQ(Encoded(spec).prescale_factor(), 0);
  EXPECT_EQ(Encoded(spec).postscale_factor(), 0);
  EXPECT_THAT(FromProto(Encoded(spec)), IsOkAndHolds(spec));
}

TEST(ProtoConvert, RoundTripsEveryKindDtypeAndOp) {
  for (int kind = 1; kind <= 11; ++kind) {
    for (int dtype = 1; dtype <= static_cast<int>(kLastDataType); ++dtype) {
      for (int op = 0; op <= 5; ++op) {
        TensorSpec spec = FullSpec();
        spec.kind = static_cast<CollectiveKind>(kind);
        spec.dtype = static_cast<DataType>(dtype);
        spec.op = static_cast<ReduceOp>(op);
        ASSERT_THAT(FromProto(Encoded(spec)), IsOkAndHolds(spec));
      }
    }
  }
}

// Each field in turn holds what this version does not know.
TEST(ProtoConvert, NamesTheTensorTheFieldAndTheNumberThatItDoesNotKnow) {
  auto refuses = [](auto&& change, const char* what) {
    v1::TensorSpec proto = Encoded(FullSpec());
    change(proto);
    EXPECT_THAT(FromProto(proto), StatusIs(absl::StatusCode::kInvalidArgument,
                                           AllOf(HasSubstr("layer3.weight"), HasSubstr(what))));
  };
  refuses([](auto& p) { p.set_kind(v1::COLLECTIVE_KIND_UNSPECIFIED); }, "kind 0");
  refuses([](auto& p) { p.set_kind(static_cast<v1::CollectiveKind>(12)); }, "kind 12");
  refuses([](auto& p) { p.set_dtype(v1::DATA_TYPE_UNSPECIFIED); }, "dtype 0");
  refuses([](auto& p) { p.set_dtype(static_cast<v1::DataType>(16)); }, "dtype 16");
  refuses([](auto& p) { p.set_op(static_cast<v1::ReduceOp>(6)); }, "op 6");
  refuses([](auto& p) { p.set_op(static_cast<v1::ReduceOp>(-1)); }, "op -1");
  refuses([](auto& p) { p.set_memory(v1::MEMORY_KIND_UNSPECIFIED); }, "memory 0");
  refuses([](auto& p) { p.set_memory(static_cast<v1::MemoryKind>(3)); }, "memory 3");
}

TEST(ProtoConvert, RefusesMoreDimensionsThanTheBound) {
  v1::TensorSpec proto = Encoded(FullSpec());
  while (proto.shape_size() <= kMaxDimensions) proto.add_shape(1);
  EXPECT_THAT(FromProto(proto),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dimensions 9")));
}

TEST(ProtoConvert, DurationsComeBackAsTheyWere) {
  for (absl::Duration duration : {absl::ZeroDuration(), absl::Milliseconds(20), absl::Hours(1),
                                  -absl::Milliseconds(1500), absl::Nanoseconds(1)}) {
    google::protobuf::Duration proto;
    ToProto(duration, &proto);
    EXPECT_EQ(FromProto(proto), duration);
  }
}

TEST(ProtoConvert, ADurationThatTheWireCannotHoldIsClamped) {
  google::protobuf::Duration proto;
  ToProto(absl::InfiniteDuration(), &proto);
  EXPECT_EQ(proto.seconds(), 315576000000);
}

}  // namespace
}  // namespace coordd
