// Sums of which NCCL multiplies the inputs, over the fake libraries.
#include "worker/gpu/nccl/nccl_operator.h"

#include <cstring>
#include <vector>

#include "tests/worker/support/nccl_backend_fixture.h"
#include "worker/numeric/half.h"

namespace coordd {
namespace {

class NcclOperatorTest : public NcclBackendTest {};

TEST_F(NcclOperatorTest, AnAverageIsNcclsOwnAndOtherFactorsAreMadeForTheCall) {
  const long before = FakeNcclMultipliedCalls();
  RunTwo([&](Context& context) {
    for (const double factor : {0.5, 0.25, 1.0}) {
      Tensor tensor = NewTensor(context, 10, context.rank == Rank{0} ? 1.0f : 6.0f);
      CollectiveArgs args = Sum(tensor);
      args.input_factor = factor;
      ASSERT_EQ(RunOne(context, args), absl::OkStatus());
      EXPECT_EQ(tensor.values()[0], 7.0f * static_cast<float>(factor));
      EXPECT_EQ(tensor.values()[9], 7.0f * static_cast<float>(factor));
    }
  });
  EXPECT_EQ(FakeNcclMultipliedCalls(), before + 4);
}

TEST_F(NcclOperatorTest, TheScalarIsOfTheTensorsType) {
  RunTwo([&](Context& context) {
    Tensor tensor = NewTensor(context, 2, 0.0f);
    CollectiveArgs args = Sum(tensor);
    args.input_factor = 0.125;
    args.dtype = DataType::kFloat64;
    const double value = 3.0;
    std::memcpy(tensor.values(), &value, sizeof(value));
    ASSERT_EQ(RunOne(context, args), absl::OkStatus());
    double sum = 0;
    std::memcpy(&sum, tensor.values(), sizeof(sum));
    EXPECT_EQ(sum, 0.75);
    args.dtype = DataType::kBfloat16;
    auto* const halves = reinterpret_cast<uint16_t*>(tensor.values());
    for (int i = 0; i < 4; ++i) halves[i] = Float32ToBfloat16(3.0f);
    ASSERT_EQ(RunOne(context, args), absl::OkStatus());
    EXPECT_EQ(Bfloat16ToFloat32(halves[3]), 0.75f);
  });
}

TEST_F(NcclOperatorTest, BlocksOfDifferentSizesAreOneGroupWithOneOperator) {
  const long before = FakeNcclMultipliedCalls();
  RunTwo([&](Context& context) {
    Tensor input = NewTensor(context, 3, 4.0f), output = NewTensor(context, 2, 0.0f);
    const size_t rows = context.rank == Rank{0} ? 2 : 1;
    CollectiveArgs args = Sum(input);
    args.kind = CollectiveKind::kReducescatter;
    args.output = output.memory.span().first(rows * sizeof(float));
    args.input_block_bytes = {8, 4};
    args.input_factor = 0.25;
    ASSERT_EQ(RunOne(context, args), absl::OkStatus());
    EXPECT_EQ(output.values()[rows - 1], 2.0f);
    args = Sum(input);
    args.kind = CollectiveKind::kReduce;
    args.root = Rank{1};
    args.input_factor = 0.5;
    if (context.rank == Rank{0}) args.output = {};
    ASSERT_EQ(RunOne(context, args), absl::OkStatus());
    EXPECT_EQ(input.values()[0], 4.0f);
  });
  EXPECT_EQ(FakeNcclMultipliedCalls(), before + 6);
}

}  // namespace
}  // namespace coordd
