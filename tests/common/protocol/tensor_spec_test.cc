#include "common/protocol/tensor_spec.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TensorSpec Gradient(std::vector<int64_t> shape) {
  TensorSpec spec;
  spec.name = "grad";
  spec.op = ReduceOp::kSum;
  spec.shape = std::move(shape);
  return spec;
}

TensorSpec Gather(std::vector<int64_t> shape) {
  TensorSpec spec = Gradient(std::move(shape));
  spec.kind = CollectiveKind::kAllgather;
  spec.op = ReduceOp::kNone;
  return spec;
}

// Refused with a sentence that names the tensor, what was found and what was expected.
void ExpectInvalid(const TensorSpec& spec, const char* found, const char* expected) {
  EXPECT_THAT(Validate(spec, 4),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("grad"), HasSubstr(found), HasSubstr(expected))));
}

TEST(TensorSpec, CountsElementsAndBytes) {
  EXPECT_EQ(NumElements({}), 1) << "a scalar has one";
  EXPECT_EQ(NumElements({3, 224, 224}), 150528);
  EXPECT_EQ(NumElements({3, 0, 224}), 0);
  EXPECT_EQ(SizeBytes(Gradient({3, 4})), 48);
}

TEST(TensorSpec, PrintsItselfForMessages) {
  EXPECT_EQ(ToString(Gradient({3, 4})), "allreduce float32 [3, 4] sum");
  EXPECT_EQ(ToString(Gather({2})), "allgather float32 [2]");
  TensorSpec broadcast = Gather({});
  broadcast.kind = CollectiveKind::kBroadcast;
  broadcast.root_rank = 3;
  EXPECT_EQ(ToString(broadcast), "broadcast float32 [] from rank 3");
  TensorSpec barrier = Gather({});
  barrier.kind = CollectiveKind::kBarrier;
  EXPECT_EQ(ToString(barrier), "barrier");
  broadcast.kind = CollectiveKind::kGather;
  EXPECT_EQ(ToString(broadcast), "gather float32 [] to rank 3");
  broadcast.peer_rank = 2;
  broadcast.kind = CollectiveKind::kSend;
  EXPECT_EQ(ToString(broadcast), "send float32 [] to rank 2");
  broadcast.kind = CollectiveKind::kReceive;
  EXPECT_EQ(ToString(broadcast), "receive float32 [] from rank 2");
}

TEST(ValidateTensorSpec, RefusesRootsAndPeersThatAreNoRanks) {
  TensorSpec spec = Gather({4});
  spec.kind = CollectiveKind::kGather;
  spec.root_rank = 4;
  ExpectInvalid(spec, "root rank 4", "0 to 3");
  spec.kind = CollectiveKind::kSend;
  spec.peer_rank = -1;
  ExpectInvalid(spec, "send with peer rank -1", "0 to 3");
}

TEST(ValidateTensorSpec, RefusesAJoinOfAProcessSet) {
  TensorSpec spec = Gather({});
  spec.kind = CollectiveKind::kJoin;
  EXPECT_THAT(Validate(spec, 4), IsOk());
  spec.process_set = ProcessSetId{2};
  ExpectInvalid(spec, "join in a process set", "process set 0");
}

TEST(CheckSame, MatchesASendWithItsReceive) {
  TensorSpec send = Gather({4});
  send.kind = CollectiveKind::kSend;
  send.peer_rank = 1;
  TensorSpec receive = send;
  receive.kind = CollectiveKind::kReceive;
  receive.peer_rank = 0;
  EXPECT_THAT(CheckSame(send, Rank{0}, receive, Rank{1}), IsOk());
  EXPECT_THAT(CheckSame(receive, Rank{1}, send, Rank{0}), IsOk());
  EXPECT_THAT(CheckSame(send, Rank{0}, send, Rank{1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("kind send")));
  receive.peer_rank = 2;
  EXPECT_THAT(CheckSame(send, Rank{0}, receive, Rank{1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has peer 2")));
  receive.peer_rank = 0;
  receive.shape = {5};
  EXPECT_THAT(CheckSame(send, Rank{0}, receive, Rank{1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shape [5]")));
}

TEST(ValidateTensorSpec, AcceptsOrdinaryTensors) {
  EXPECT_THAT(Validate(Gradient({}), 1), IsOk());
  EXPECT_THAT(Validate(Gradient({0}), 1), IsOk());
  EXPECT_THAT(Validate(Gradient({1, 2, 3, 4, 5, 6, 7, 8}), 1), IsOk());
  EXPECT_THAT(Validate(Gather({5, 2}), 4), IsOk());
}

TEST(ValidateTensorSpec, RefusesNamesBeyondTheBound) {
  TensorSpec spec = Gradient({1});
  spec.name = "";
  EXPECT_THAT(Validate(spec, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 bytes")));
  spec.name = std::string(kMaxTensorNameBytes, 'n');
  EXPECT_THAT(Validate(spec, 1), IsOk());
  spec.name += 'n';
  EXPECT_THAT(Validate(spec, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("513 bytes")));
}

TEST(ValidateTensorSpec, RefusesImpossibleShapes) {
  ExpectInvalid(Gradient({3, -1}), "[3, -1]", "no negative extent");
  ExpectInvalid(Gradient(std::vector<int64_t>(9, 1)), "9 dimensions", "at most 8");
  ExpectInvalid(Gather({}), "allgather of a scalar", "at least one dimension");
}

TEST(ValidateTensorSpec, RefusesSizesBeyondTheBoundWithoutOverflow) {
  EXPECT_THAT(Validate(Gradient({kMaxTensorBytes / 4}), 1), IsOk());
  ExpectInvalid(Gradient({kMaxTensorBytes / 4 + 1}), "shape", "bytes");
  ExpectInvalid(Gradient({int64_t{1} << 62, int64_t{1} << 62}), "shape", "bytes");
  ExpectInvalid(Gradient({0, int64_t{1} << 62, int64_t{1} << 62}), "shape", "bytes");
}

TEST(ValidateTensorSpec, RefusesOpsThatTheKindDoesNotHave) {
  TensorSpec no_op = Gradient({1});
  no_op.op = ReduceOp::kNone;
  ExpectInvalid(no_op, "allreduce without op", "sum");
  TensorSpec with_op = Gather({1});
  with_op.op = ReduceOp::kSum;
  ExpectInvalid(with_op, "allgather with op sum", "no op");
  TensorSpec scaled = Gather({1});
  scaled.prescale_factor = 2;
  ExpectInvalid(scaled, "allgather with a scale factor", "none");
}

TEST(ValidateTensorSpec, RefusesAveragesOfBool) {
  TensorSpec spec = Gradient({1});
  spec.dtype = DataType::kBool;
  EXPECT_THAT(Validate(spec, 4), IsOk());
  spec.op = ReduceOp::kAverage;
  ExpectInvalid(spec, "bool with average", "numeric dtype");
}

TEST(ValidateTensorSpec, RefusesARootOutsideTheJob) {
  TensorSpec spec = Gather({1});
  spec.kind = CollectiveKind::kBroadcast;
  spec.root_rank = 3;
  EXPECT_THAT(Validate(spec, 4), IsOk());
  spec.root_rank = 4;
  ExpectInvalid(spec, "root rank 4", "0 to 3");
  spec.root_rank = -1;
  ExpectInvalid(spec, "root rank -1", "0 to 3");
}

TEST(ValidateTensorSpec, RefusesGroupsWithoutASize) {
  TensorSpec spec = Gradient({1});
  spec.group = "gradients";
  ExpectInvalid(spec, "group of 0", "1 to 65536");
  spec.group_size = 1;
  EXPECT_THAT(Validate(spec, 4), IsOk());
}

TEST(CheckSame, AcceptsEqualSpecs) {
  EXPECT_THAT(CheckSame(Gradient({3}), Rank{0}, Gradient({3}), Rank{1}), IsOk());
}

TEST(CheckSame, LetsTheFirstDimensionOfAnAllgatherDiffer) {
  EXPECT_THAT(CheckSame(Gather({3, 2}), Rank{0}, Gather({9, 2}), Rank{1}), IsOk());
  EXPECT_THAT(CheckSame(Gather({3, 2}), Rank{0}, Gather({3, 4}), Rank{1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shape")));
  EXPECT_THAT(CheckSame(Gather({3, 2}), Rank{0}, Gather({3}), Rank{1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shape")));
}

TEST(CheckSame, NamesTheTensorBothRanksAndBothValues) {
  EXPECT_THAT(CheckSame(Gradient({3}), Rank{0}, Gradient({4}), Rank{2}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::StrEq("tensor grad: rank 2 has shape [4], rank 0 has [3]")));
}

// One field at a time differs.
TEST(CheckSame, NamesTheFieldThatDiffers) {
  auto differs_in = [](auto&& change, const char* what) {
    TensorSpec other = Gradient({3});
    change(other);
    EXPECT_THAT(
        CheckSame(Gradient({3}), Rank{0}, other, Rank{1}),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("has ", what))));
  };
  differs_in([](auto& s) { s.kind = CollectiveKind::kReducescatter; }, "kind reducescatter");
  differs_in([](auto& s) { s.dtype = DataType::kFloat64; }, "dtype float64");
  differs_in([](auto& s) { s.op = ReduceOp::kMax; }, "op max");
  differs_in([](auto& s) { s.root_rank = 1; }, "root rank 1");
  differs_in([](auto& s) { s.prescale_factor = 2; }, "prescale factor 2");
  differs_in([](auto& s) { s.postscale_factor = 0.5; }, "postscale factor 0.5");
  differs_in([](auto& s) { s.process_set = ProcessSetId{1}; }, "process set 1");
  differs_in([](auto& s) { s.group = "g"; }, "group g");
  differs_in([](auto& s) { s.group_size = 2; }, "group size 2");
  differs_in([](auto& s) { s.memory = MemoryKind::kCuda; }, "memory cuda");
}

TEST(CollectiveKindTest, HowItsInputAndItsResultAreDivided) {
  struct Row {
    CollectiveKind kind;
    bool has_rows = false, rows_may_differ = false, by_rank = false, splits = false;
  };
  const Row rows[] = {
      {.kind = CollectiveKind::kAllreduce},
      {.kind = CollectiveKind::kAllgather, .has_rows = true, .rows_may_differ = true},
      {.kind = CollectiveKind::kBroadcast},
      {.kind = CollectiveKind::kReducescatter, .has_rows = true, .by_rank = true},
      {.kind = CollectiveKind::kAlltoall,
       .has_rows = true,
       .rows_may_differ = true,
       .by_rank = true,
       .splits = true},
      {.kind = CollectiveKind::kBarrier},
      {.kind = CollectiveKind::kJoin},
      {.kind = CollectiveKind::kReduce},
      {.kind = CollectiveKind::kGather, .has_rows = true, .rows_may_differ = true},
      {.kind = CollectiveKind::kSend},
      {.kind = CollectiveKind::kReceive},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(Name(row.kind));
    EXPECT_EQ(HasRows(row.kind), row.has_rows);
    EXPECT_EQ(FirstDimensionMayDiffer(row.kind), row.rows_may_differ);
    EXPECT_EQ(InputIsByRank(row.kind), row.by_rank);
    EXPECT_EQ(HasSplits(row.kind), row.splits);
  }
}

TEST(CollectiveKindTest, OfWhatIsNoKindNothingIsTrueButThatItHasAPayload) {
  for (const CollectiveKind kind : {CollectiveKind{0}, CollectiveKind{200}}) {
    EXPECT_FALSE(Reduces(kind) || HasRoot(kind) || IsPairwise(kind) || NeedsEveryRank(kind));
    EXPECT_FALSE(FirstDimensionMayDiffer(kind) || CanFuse(kind));
    EXPECT_FALSE(HasRows(kind) || InputIsByRank(kind) || HasSplits(kind));
    EXPECT_TRUE(HasPayload(kind));
  }
}

}  // namespace
}  // namespace coordd
