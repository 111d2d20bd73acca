// Groups that are submitted again and again.
#include <utility>
#include <vector>

#include "tests/worker/support/worker_impl_fixture.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

class WorkerGroupsTest : public WorkerImplTest {};

TEST_F(WorkerGroupsTest, AGroupIsPreparedOnceForAllGenerations) {
  options_.on_failure = OnFailure::kRaise;
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();
  PreparedGroup group("step", {Sum("weight").spec, Sum("bias").spec});
  const std::vector<TensorBuffers> buffers = {Sum("weight"), Sum("bias")};
  for (int64_t sequence : {1, 2}) {
    const auto works = (*worker)->SubmitGroup(group, buffers, absl::ZeroDuration());
    ASSERT_THAT(works, IsOk());
    const v1::WorkerMessage ready = coordinator_.ReceiveNext();
    EXPECT_EQ(ready.tensors_ready().tensors_size(), 2);
    Plan(sequence, "weight", "bias");
    for (const auto& work : *works)
      EXPECT_THAT(work->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  }
  ChangeGeneration();
  ASSERT_THAT((*worker)->AwaitGeneration(Clock::Real().Now() + kHangLimit), IsOk());
  const auto works = (*worker)->SubmitGroup(group, buffers, absl::ZeroDuration());
  ASSERT_THAT(works, IsOk());
  EXPECT_EQ(coordinator_.ReceiveNext().generation(), 2);
  Plan(1, "weight", "bias");
  EXPECT_THAT(works->back()->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  EXPECT_EQ(works->back()->result().generation, Generation{2});
  Stop(**worker);
}

TEST_F(WorkerGroupsTest, RefusesAGroupThatIsNone) {
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  auto refused = [&](PreparedGroup group, std::vector<TensorBuffers> buffers) {
    return (*worker)->SubmitGroup(group, std::move(buffers), absl::ZeroDuration()).status();
  };
  const TensorSpec good = Sum("weight").spec;
  TensorSpec negative = good, elsewhere = good;
  negative.shape = {-1};
  elsewhere.process_set = ProcessSetId{1};
  const std::vector<TensorBuffers> two = {Sum("weight"), Sum("bias")};
  EXPECT_THAT(refused({"", {good}}, {Sum("weight")}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without a name")));
  EXPECT_THAT(refused({"step", {good}}, two),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("group step: buffers of 2 tensors, expected 1")));
  EXPECT_THAT(refused({"step", {good, negative}}, two),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[-1]")));
  EXPECT_THAT(refused({"step", {good, elsewhere}}, two),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("process sets 0 and 1")));
  EXPECT_THAT(refused({"step", {good}}, {TensorBuffers()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tensor weight: no input")));
  Stop(**worker);
}

}  // namespace
}  // namespace coordd
