#include "worker/runtime/submission_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

float input[12], output[12];

Submission Of(CollectiveKind kind, std::vector<int64_t> shape) {
  Submission submission;
  submission.spec.name = "t";
  submission.spec.kind = kind;
  submission.spec.shape = std::move(shape);
  if (Reduces(kind)) submission.spec.op = ReduceOp::kSum;
  submission.input = input;
  submission.output = output;
  submission.output_capacity_bytes = sizeof(output);
  return submission;
}

constexpr int32_t kRank = 1;

// `set`: the ranks of the process set; nullptr: all three.
absl::Status Check(Submission submission, RankList set = nullptr) {
  return CheckSubmission(std::move(submission), {kRank, 3, std::move(set)}, absl::InfiniteFuture(),
                         Clock::Real())
      .status();
}

TEST(CheckSubmission, TakesWhatIsRight) {
  EXPECT_THAT(Check(Of(CollectiveKind::kAllreduce, {12})), IsOk());
  EXPECT_THAT(Check(Of(CollectiveKind::kReducescatter, {4, 3})), IsOk());
  Submission barrier;
  barrier.spec.name = "b";
  barrier.spec.kind = CollectiveKind::kBarrier;
  EXPECT_THAT(Check(barrier), IsOk());
  Submission empty = Of(CollectiveKind::kAllreduce, {0});
  empty.input = empty.output = nullptr;
  EXPECT_THAT(Check(empty), IsOk());
}

TEST(CheckSubmission, NeedsBuffers) {
  Submission submission = Of(CollectiveKind::kAllreduce, {12});
  submission.input = nullptr;
  EXPECT_THAT(Check(submission), StatusIs(absl::StatusCode::kInvalidArgument,
                                          AllOf(HasSubstr("tensor t"), HasSubstr("48 bytes"))));
  submission.spec.shape = {1};
  submission.spec.dtype = DataType::kUint8;
  EXPECT_THAT(Check(submission), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1 byte")));
  EXPECT_THAT(Check(submission),
              StatusIs(absl::StatusCode::kInvalidArgument, Not(HasSubstr("1 bytes"))));
  submission = Of(CollectiveKind::kAllreduce, {12});
  submission.output = nullptr;
  EXPECT_THAT(Check(submission),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without an output")));
  submission = Of(CollectiveKind::kAllgather, {4, 3});
  submission.output = nullptr;  // the runtime allocates
  EXPECT_THAT(Check(submission), IsOk());
  submission = Of(CollectiveKind::kBroadcast, {12});
  submission.input = nullptr;  // only the root's is read
  EXPECT_THAT(Check(submission), IsOk());
  submission.spec.root_rank = kRank;
  EXPECT_THAT(Check(submission),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no input")));
}

TEST(CheckSubmission, NeedsNoOutputWhereThereIsNoResult) {
  for (CollectiveKind kind :
       {CollectiveKind::kReduce, CollectiveKind::kGather, CollectiveKind::kSend}) {
    Submission submission = Of(kind, {12});
    submission.output = nullptr;
    EXPECT_THAT(Check(submission), IsOk()) << Name(kind);
  }
  Submission reduce = Of(CollectiveKind::kReduce, {12});
  reduce.spec.root_rank = kRank;
  reduce.output = nullptr;
  EXPECT_THAT(Check(reduce),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("reduce without an output")));
  Submission receive = Of(CollectiveKind::kReceive, {12});
  receive.input = nullptr;
  EXPECT_THAT(Check(receive), IsOk());
  receive.output = nullptr;
  EXPECT_THAT(Check(receive),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("receive without an output")));
}

TEST(CheckSubmission, NamesTheRankThatIsNoMemberOfTheProcessSet) {
  const auto others = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{0, 2});
  Submission submission = Of(CollectiveKind::kAllreduce, {12});
  submission.spec.process_set = ProcessSetId{4};
  EXPECT_THAT(Check(submission, others),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("rank 1"), HasSubstr("process set 4 [0, 2]"))));
  const auto own = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{1, 2});
  EXPECT_THAT(Check(submission, own), IsOk());
  submission = Of(CollectiveKind::kBroadcast, {12});
  submission.spec.process_set = ProcessSetId{4};
  EXPECT_THAT(Check(submission, own),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("root rank 0"), HasSubstr("process set 4 [1, 2]"))));
}

TEST(CheckSubmission, CountsSplitsByTheProcessSet) {
  const auto set = std::make_shared<const std::vector<int32_t>>(std::vector<int32_t>{1, 2});
  Submission submission = Of(CollectiveKind::kAlltoall, {6});
  submission.spec.process_set = ProcessSetId{4};
  submission.splits = {2, 4};
  EXPECT_THAT(Check(submission, set), IsOk());
  submission.splits = {2, 2, 2};
  EXPECT_THAT(Check(submission, set),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 numbers")));
}

TEST(CheckSubmission, RefusesASendToItself) {
  Submission submission = Of(CollectiveKind::kSend, {12});
  submission.spec.peer_rank = kRank;
  EXPECT_THAT(Check(submission),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 1 and itself")));
}

TEST(CheckSubmission, FillsInAndChecksSplits) {
  auto job = CheckSubmission(Of(CollectiveKind::kAlltoall, {6, 2}), {kRank, 3, nullptr},
                             absl::InfiniteFuture(), Clock::Real());
  ASSERT_THAT(job, IsOk());
  EXPECT_THAT(job->splits, ElementsAre(2, 2, 2));
  EXPECT_THAT(Check(Of(CollectiveKind::kAlltoall, {4})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("multiple of 3")));
  for (std::vector<int64_t> splits : std::vector<std::vector<int64_t>>{
           {1, 2}, {1, 2, 4}, {7, -1, 0}, {INT64_MAX, INT64_MAX, 8}}) {
    Submission submission = Of(CollectiveKind::kAlltoall, {6});
    submission.splits = splits;
    EXPECT_THAT(Check(submission),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("add up to 6")));
  }
  Submission submission = Of(CollectiveKind::kAllreduce, {6});
  submission.splits = {6};
  EXPECT_THAT(Check(submission),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with splits")));
}

TEST(CheckSubmission, RefusesWhatCannotWorkInPlace) {
  for (CollectiveKind kind : {CollectiveKind::kAlltoall, CollectiveKind::kReducescatter,
                              CollectiveKind::kAllgather, CollectiveKind::kGather}) {
    Submission submission = Of(kind, {6});
    submission.output = input;
    EXPECT_THAT(Check(submission),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in place")));
  }
}

TEST(CheckSubmission, MemoryAndDeviceAreOfOneKind) {
  Submission submission = Of(CollectiveKind::kAllreduce, {12});
  submission.spec.memory = MemoryKind::kCuda;
  EXPECT_THAT(Check(submission), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("memory of kind cuda on device -1")));
  submission.device = 1;
  EXPECT_THAT(Check(submission), IsOk());
  submission.spec.memory = MemoryKind::kHost;
  EXPECT_THAT(Check(submission), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("memory of kind host on device 1")));
}

TEST(CheckSubmission, RefusesANameThatIsNotUtf8) {
  Submission submission = Of(CollectiveKind::kAllreduce, {12});
  submission.spec.name = "grad\xff";
  EXPECT_THAT(Check(submission), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-8")));
}

}  // namespace
}  // namespace coordd
