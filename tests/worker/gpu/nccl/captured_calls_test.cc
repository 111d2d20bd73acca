#include "worker/gpu/nccl/captured_calls.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

CapturedCall Call(CollectiveKind kind, std::vector<int64_t> elements) {
  CapturedCall call;
  call.kind = kind;
  if (kind == CollectiveKind::kAllreduce) call.op = ReduceOp::kSum;
  for (const int64_t count : elements) {
    CapturedTensor tensor;
    tensor.dtype = DataType::kFloat32;
    tensor.input_bytes = tensor.output_bytes = 4 * count;
    call.tensors.push_back(tensor);
  }
  return call;
}

std::string Encoded(const std::vector<CapturedCall>& calls) {
  CapturedSequence sequence;
  for (const CapturedCall& call : calls) sequence.Add(DescribeCall(call));
  return sequence.Encode();
}

TEST(CapturedCalls, AreDescribedByAllThatRanksHaveToAgreeOn) {
  EXPECT_EQ(DescribeCall(Call(CollectiveKind::kAllreduce, {3, 4})),
            "allreduce sum of 2 tensors: float32 3, float32 4");
  CapturedCall broadcast = Call(CollectiveKind::kBroadcast, {5});
  broadcast.root = 2;
  EXPECT_EQ(DescribeCall(broadcast), "broadcast from 2 of 1 tensor: float32 5");
}

TEST(CapturedCalls, OfTheSameSequenceHaveNoDifference) {
  const std::string same = Encoded({Call(CollectiveKind::kAllreduce, {3})});
  EXPECT_THAT(FirstDifference({same, same, same}, {0, 1, 2}), IsEmpty());
  EXPECT_THAT(FirstDifference({Encoded({}), Encoded({})}, {0, 1}), IsEmpty());
}

TEST(CapturedCalls, ThatDifferAreNamedWithTheRankAndBothCalls) {
  const CapturedCall allreduce = Call(CollectiveKind::kAllreduce, {3});
  const CapturedCall allgather = Call(CollectiveKind::kAllgather, {3});
  const std::string first = Encoded({allreduce, allreduce});
  EXPECT_EQ(
      FirstDifference({first, first, Encoded({allreduce, allgather})}, {4, 6, 9}),
      "captured call 2 is on rank 9 allgather of 1 tensor: float32 3, on rank 4 allreduce sum "
      "of 1 tensor: float32 3, expected the same on all ranks");
  EXPECT_THAT(FirstDifference({first, Encoded({allreduce})}, {0, 1}),
              HasSubstr("captured call 2 is on rank 1 nothing, on rank 0 allreduce sum"));
}

TEST(CapturedCalls, BeyondWhatAValueOfTheStoreHoldsDifferWithoutAName) {
  CapturedSequence one, other;
  for (int call = 0; call < 10000; ++call) {
    one.Add(absl::StrCat("call ", call));
    other.Add(absl::StrCat("call ", call == 9999 ? -1 : call));
  }
  EXPECT_LE(one.Encode().size(), size_t{64} << 10);
  EXPECT_THAT(FirstDifference({one.Encode(), other.Encode()}, {0, 1}),
              HasSubstr("rank 1 has captured other collectives than rank 0 behind call"));
}

}  // namespace
}  // namespace coordd
