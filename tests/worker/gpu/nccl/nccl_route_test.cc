#include "worker/gpu/nccl/nccl_route.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

TensorSpec Average(DataType dtype = DataType::kFloat32) {
  TensorSpec spec;
  spec.name = "grad";
  spec.kind = CollectiveKind::kAllreduce;
  spec.op = ReduceOp::kAverage;
  spec.dtype = dtype;
  spec.shape = {1 << 20};
  spec.memory = MemoryKind::kCuda;
  return spec;
}

DeviceDecision ByNccl() {
  DeviceDecision decision;
  decision.nccl = true;
  return decision;
}

TEST(NcclMultiplies, WhereTheProductIsExact) {
  EXPECT_TRUE(NcclMultiplies(Average(), 4, ByNccl()));
  EXPECT_TRUE(NcclMultiplies(Average(DataType::kFloat64), 2, ByNccl()));
  EXPECT_TRUE(NcclMultiplies(Average(DataType::kBfloat16), 1024, ByNccl()));
  EXPECT_FALSE(NcclMultiplies(Average(), 3, ByNccl()));  // 1/3 is rounded, and so each product
  EXPECT_FALSE(NcclMultiplies(Average(), 1, ByNccl()));  // there is nothing to divide
  // Least numbers, which would lose their last bits.
  EXPECT_FALSE(NcclMultiplies(Average(DataType::kFloat16), 4, ByNccl()));
  EXPECT_FALSE(NcclMultiplies(Average(DataType::kFloat8E5m2), 4, ByNccl()));
  EXPECT_FALSE(NcclMultiplies(Average(DataType::kInt32), 4, ByNccl()));
}

TEST(NcclMultiplies, AllFactorsOfASumInOne) {
  TensorSpec spec = Average();
  spec.op = ReduceOp::kSum;
  EXPECT_FALSE(NcclMultiplies(spec, 4, ByNccl()));  // nothing is scaled
  spec.postscale_factor = 0.25;
  EXPECT_TRUE(NcclMultiplies(spec, 3, ByNccl()));
  spec.prescale_factor = 0.5;
  EXPECT_TRUE(NcclMultiplies(spec, 3, ByNccl()));
  spec.prescale_factor = 8;  // of numbers that become larger some may become infinite
  EXPECT_FALSE(NcclMultiplies(spec, 3, ByNccl()));
  spec.prescale_factor = 0.3;
  EXPECT_FALSE(NcclMultiplies(spec, 3, ByNccl()));
  spec.prescale_factor = -0.5;
  EXPECT_FALSE(NcclMultiplies(spec, 3, ByNccl()));
  spec.prescale_factor = 0.0;
  EXPECT_FALSE(NcclMultiplies(spec, 3, ByNccl()));
  spec.prescale_factor = 1.0 / (1 << 30);
  EXPECT_FALSE(NcclMultiplies(spec, 3, ByNccl()));
  spec = Average();
  spec.op = ReduceOp::kMax;
  spec.postscale_factor = 0.5;
  EXPECT_FALSE(NcclMultiplies(spec, 4, ByNccl()));
}

TEST(NcclMultiplies, NotWhatASwitchMayReduceOrTheHost) {
  DeviceDecision decision = ByNccl();
  decision.multicast = true;
  EXPECT_FALSE(NcclMultiplies(Average(), 4, decision));
  TensorSpec small = Average();
  small.shape = {1 << 14};
  EXPECT_TRUE(NcclMultiplies(small, 4, decision));
  decision = ByNccl();
  decision.ranks_per_node = 2;
  EXPECT_FALSE(NcclMultiplies(Average(), 4, decision));
  TensorSpec scattered = Average();
  scattered.kind = CollectiveKind::kReducescatter;
  EXPECT_TRUE(NcclMultiplies(scattered, 4, decision));
}

}  // namespace
}  // namespace coordd
