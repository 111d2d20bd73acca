// What a worker decides about process sets, joins, sends and receives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// This rank is rank 0 of 3.
TensorSpec In(int32_t set, TensorSpec spec) {
  spec.process_set = ProcessSetId{set};
  return spec;
}

TensorSpec OfKind(CollectiveKind kind, const std::string& name, std::vector<int64_t> shape = {4}) {
  TensorSpec spec = Gradient(name, std::move(shape));
  spec.kind = kind;
  if (!Reduces(kind)) spec.op = ReduceOp::kNone;
  return spec;
}

TensorSpec Join() { return OfKind(CollectiveKind::kJoin, kJoinName, {}); }

void Ask(Member& member, int64_t token, std::vector<int32_t> ranks, int32_t remove = 0) {
  member.Turn(
      ProcessSetAsked{token, ProcessSetId{remove}, std::move(ranks), member.now() + kTimeout});
}

// A member with process set 1 of ranks 0 and 2.
Member WithSet() {
  Member member;
  Ask(member, 5, {0, 2});
  member.Change(1, 1, {0, 2});
  member.Clear();
  return member;
}

TEST(WorkerStateSets, NumbersItsRequestsAndHandsOnTheAnswers) {
  Member member;
  Ask(member, 5, {0, 2});
  Ask(member, 6, {1});
  const auto requests = member.sent(v1::WorkerMessage::kProcessSetRequest);
  ASSERT_THAT(requests, SizeIs(2));
  EXPECT_EQ(requests[0].process_set_request().request(), 1);
  EXPECT_THAT(requests[0].process_set_request().ranks(), ElementsAre(0, 2));
  EXPECT_EQ(requests[1].process_set_request().request(), 2);
  member.Clear();
  member.Change(1, 1, {0, 2});
  ASSERT_THAT(member.All<DefineProcessSet>(), SizeIs(1));
  EXPECT_TRUE(member.All<DefineProcessSet>()[0].member);
  EXPECT_FALSE(member.All<DefineProcessSet>()[0].for_pair);
  ASSERT_THAT(member.All<ProcessSetAnswer>(), SizeIs(1));
  EXPECT_EQ(member.All<ProcessSetAnswer>()[0].token, 5);
  EXPECT_EQ(member.All<ProcessSetAnswer>()[0].process_set, ProcessSetId{1});
  member.Clear();
  member.Change(2, 2, {1});
  EXPECT_FALSE(member.All<DefineProcessSet>()[0].member);
  EXPECT_EQ(member.All<ProcessSetAnswer>()[0].token, 6);
}

TEST(WorkerStateSets, ReportsWhatWasSubmittedBeforeTheEndOfASetBeforeIt) {
  Member member = WithSet();
  std::vector<WorkerEffect> out;
  TensorsSubmitted submitted;
  submitted.tensors.push_back({TensorId{1}, In(1, Gradient("a")), member.now() + kTimeout});
  member.state().Step(std::move(submitted), member.now(), out);
  member.state().Step(ProcessSetAsked{7, ProcessSetId{1}, {}, member.now() + kTimeout},
                      member.now(), out);
  ASSERT_THAT(out, SizeIs(2));
  EXPECT_TRUE(std::get<SendMessage>(out[0]).message.has_tensors_ready());
  EXPECT_TRUE(std::get<SendMessage>(out[1]).message.has_process_set_request());
}

TEST(WorkerStateSets, HandsOnARefusal) {
  Member member;
  Ask(member, 5, {0, 2});
  member.RefuseSet(1, absl::StatusCode::kInvalidArgument, "rank 1 asks for [0, 1]");
  ASSERT_THAT(member.All<ProcessSetAnswer>(), SizeIs(1));
  EXPECT_THAT(member.All<ProcessSetAnswer>()[0].status,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[0, 1]")));
  EXPECT_THAT(member.All<DefineProcessSet>(), IsEmpty());
}

TEST(WorkerStateSets, WithdrawsARequestAtItsDeadlineAndWaitsForTheAnswer) {
  Member member;
  const absl::Time deadline = member.now() + absl::Seconds(1);
  member.Turn(ProcessSetAsked{5, {}, {0, 2}, deadline});
  member.Clear();
  EXPECT_EQ(member.state().NextDeadline(), deadline);
  member.Advance(absl::Seconds(1));
  const auto requests = member.sent(v1::WorkerMessage::kProcessSetRequest);
  ASSERT_THAT(requests, SizeIs(1));
  EXPECT_TRUE(requests[0].process_set_request().withdrawn());
  EXPECT_EQ(requests[0].process_set_request().request(), 1);
  EXPECT_THAT(member.All<ProcessSetAnswer>(), IsEmpty());
  member.RefuseSet(1, absl::StatusCode::kCancelled, "not asked for by rank 2");
  ASSERT_THAT(member.All<ProcessSetAnswer>(), SizeIs(1));
  EXPECT_THAT(member.All<ProcessSetAnswer>()[0].status,
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("[0, 2]"), HasSubstr("not asked for by rank 2"))));
}

TEST(WorkerStateSets, EndsTheGenerationWhenTheWithdrawalIsNotAnswered) {
  Member member;
  member.Turn(ProcessSetAsked{5, {}, {0}, member.now() + absl::Seconds(1)});
  member.Advance(absl::Seconds(1));
  member.Advance(kWithdrawalAnswer);
  EXPECT_THAT(member.state().status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the process set of ranks [0]")));
  EXPECT_THAT(member.All<ProcessSetAnswer>(), SizeIs(1));
}

TEST(WorkerStateSets, AnswersEveryRequestWhenTheGenerationEndsOrItLeaves) {
  Member ended;
  Ask(ended, 5, {0});
  ended.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "gone", /*in_flight=*/true);
  ASSERT_THAT(ended.All<ProcessSetAnswer>(), SizeIs(1));
  EXPECT_THAT(ended.All<ProcessSetAnswer>()[0].status,
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2")));
  ended.Clear();
  Ask(ended, 6, {0});
  EXPECT_THAT(ended.All<ProcessSetAnswer>(), SizeIs(1));
  Member left;
  Ask(left, 5, {0});
  left.Turn(LeaveRequested{});
  ASSERT_THAT(left.All<ProcessSetAnswer>(), SizeIs(1));
  EXPECT_TRUE(absl::IsCancelled(left.All<ProcessSetAnswer>()[0].status));
}

TEST(WorkerStateSets, NamesAreUniquePerSetAndLanesCountApart) {
  Member member = WithSet();
  member.Submit({Gradient("a")});
  member.Submit({In(1, Gradient("a"))});
  EXPECT_THAT(member.reported(), ElementsAre("a", "a"));
  member.Clear();
  member.PlanIn(1, 1, {"a"});
  ASSERT_THAT(member.All<LaunchBatch>(), SizeIs(1));
  EXPECT_EQ(member.All<LaunchBatch>()[0].process_set, ProcessSetId{1});
  EXPECT_EQ(member.All<LaunchBatch>()[0].lane, LaneId{1});
  EXPECT_THAT(member.All<LaunchBatch>()[0].tensors, ElementsAre(TensorId{2}));
  member.Clear();
  member.PlanIn(0, 1, {"a"});
  EXPECT_THAT(member.All<LaunchBatch>()[0].tensors, ElementsAre(TensorId{1}));
}

TEST(WorkerStateSets, AFailureIsOfOneSet) {
  Member member = WithSet();
  member.Submit({Gradient("a"), In(1, Gradient("a"))});
  v1::CoordinatorMessage message = member.Message();
  v1::TensorFailure& failure = *message.mutable_tensor_failures()->add_failures();
  failure.set_name("a");
  failure.set_process_set(1);
  failure.set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  member.Say(std::move(message));
  EXPECT_THAT(member.failure(1), IsOk());
  EXPECT_THAT(member.failure(2), Not(IsOk()));
}

TEST(WorkerStateSets, WithdrawsEachSetsTensorsInAMessageOfTheirOwn) {
  Member member = WithSet();
  member.Submit({Gradient("a"), In(1, Gradient("b")), In(1, Gradient("c"))});
  member.Clear();
  member.Turn(LeaveRequested{});
  const auto withdrawn = member.sent(v1::WorkerMessage::kTensorsWithdrawn);
  ASSERT_THAT(withdrawn, SizeIs(2));
  EXPECT_EQ(withdrawn[0].tensors_withdrawn().process_set(), 0);
  EXPECT_THAT(withdrawn[0].tensors_withdrawn().names(), ElementsAre("a"));
  EXPECT_EQ(withdrawn[1].tensors_withdrawn().process_set(), 1);
  EXPECT_THAT(withdrawn[1].tensors_withdrawn().names(), ElementsAre("b", "c"));
}

TEST(WorkerStateSets, RefusesASetOfWhichItIsNoMember) {
  Member member = WithSet();
  member.Change(0, 2, {1, 2});
  member.Submit({In(2, Gradient("a")), In(9, Gradient("b"))});
  EXPECT_THAT(member.failure(1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("process set 2")));
  EXPECT_THAT(member.failure(2), Not(IsOk()));
  EXPECT_THAT(member.reported(), IsEmpty());
}

TEST(WorkerStateSets, FailsWhatIsPendingInASetThatEnds) {
  Member member = WithSet();
  member.Submit({Gradient("a"), In(1, Gradient("b")), In(1, Gradient("c"))});
  member.PlanIn(1, 1, {"c"});
  member.Clear();
  Ask(member, 7, {}, /*remove=*/1);
  EXPECT_EQ(member.sent(v1::WorkerMessage::kProcessSetRequest)[0].process_set_request().remove(),
            1);
  member.Change(2, 1, {});
  EXPECT_THAT(member.failure(1), IsOk());
  EXPECT_THAT(member.failure(2), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("process set 1 has been removed")));
  EXPECT_THAT(member.failure(3), IsOk());  // executing
  EXPECT_THAT(member.All<EndProcessSet>(), SizeIs(1));
  EXPECT_THAT(member.All<ProcessSetAnswer>()[0].status, IsOk());
  member.Turn(BatchDone{LaneId{1}, 1, absl::OkStatus(), std::nullopt});
  EXPECT_EQ(member.state().executing_batches(), 0);
}

TEST(WorkerStateSets, SaysWhereItIsOnEveryLane) {
  Member member = WithSet();
  member.Submit({In(1, Gradient("a")), In(1, Gradient("b"))});
  member.PlanIn(1, 1, {"a"});
  member.Clear();
  member.Advance(absl::Seconds(2));
  const auto heartbeats = member.sent(v1::WorkerMessage::kHeartbeat);
  ASSERT_THAT(heartbeats, SizeIs(1));
  ASSERT_EQ(heartbeats[0].heartbeat().lanes_size(), 2);
  EXPECT_EQ(heartbeats[0].heartbeat().lanes(1).lane(), 1);
  EXPECT_EQ(heartbeats[0].heartbeat().lanes(1).launched(), 1);
  EXPECT_EQ(heartbeats[0].heartbeat().lanes(1).oldest_waiting(), "b");
  EXPECT_EQ(heartbeats[0].heartbeat().lanes(0).oldest_waiting(), "");
}

TEST(WorkerStateSets, EndsTheGenerationWhenCoorddContradictsItself) {
  for (const auto& change : std::vector<std::function<void(Member&)>>{
           [](Member& m) {
             m.Change(0, 1, {0, 1});
           },  // defined already
           [](Member& m) {
             m.Change(0, 2, {1, 0});
           },  // not increasing
           [](Member& m) {
             m.Change(0, 2, {0, 3});
           },  // no rank of the job
           [](Member& m) {
             m.Change(0, 0, {0, 1});
           },                                         // that is all ranks
           [](Member& m) { m.Change(9, 7, {}); },     // not there to end
           [](Member& m) { m.PlanIn(7, 1, {"a"}); },  // not a set of this rank
       }) {
    Member member = WithSet();
    member.Submit({Gradient("a")});
    change(member);
    EXPECT_THAT(member.state().status(),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("coordd")));
    EXPECT_THAT(member.failure(1), Not(IsOk()));
  }
}

// --- send and receive -------------------------------------------------------------------------

TEST(WorkerStatePairs, FindsASubmissionToSetZeroInThePlanOfItsPair) {
  Member member;
  TensorSpec send = OfKind(CollectiveKind::kSend, "x");
  send.peer_rank = 2;
  member.Submit({send});
  member.Change(0, 4, {0, 2});
  ASSERT_THAT(member.All<DefineProcessSet>(), SizeIs(1));
  EXPECT_TRUE(member.All<DefineProcessSet>()[0].for_pair);
  EXPECT_THAT(member.All<ProcessSetAnswer>(), IsEmpty());
  member.PlanIn(4, 1, {"x"});
  ASSERT_THAT(member.All<LaunchBatch>(), SizeIs(1));
  EXPECT_THAT(member.All<LaunchBatch>()[0].tensors, ElementsAre(TensorId{1}));
}

TEST(WorkerStatePairs, DoesNotTakeAnotherTensorForTheOneOfThePair) {
  for (int32_t peer : {1, -1}) {
    Member member;
    TensorSpec other = peer < 0 ? Gradient("x") : OfKind(CollectiveKind::kSend, "x");
    other.peer_rank = peer;
    member.Submit({other});
    member.Change(0, 4, {0, 2});
    member.PlanIn(4, 1, {"x"});
    EXPECT_THAT(member.state().status(),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("has not submitted")));
  }
}

// --- join -------------------------------------------------------------------------------------

TEST(WorkerStateJoin, TakesPartInWhatItHasNotSubmitted) {
  Member member;
  member.Submit({Gradient("own")});
  member.Submit({Join()});
  member.Clear();
  // What it submitted before it joined it still gives.
  member.PlanIn(0, 1, {"own", "other"}, {Gradient("own"), Gradient("other")});
  ASSERT_THAT(member.All<LaunchBatch>(), SizeIs(1));
  EXPECT_THAT(member.All<LaunchBatch>()[0].tensors, ElementsAre(TensorId{1}, TensorId{0}));
  ASSERT_THAT(member.All<LaunchBatch>()[0].absent, SizeIs(1));
  EXPECT_EQ(member.All<LaunchBatch>()[0].absent[0], Gradient("other"));
  member.Done(1);
}

TEST(WorkerStateJoin, HasNoRowsToGive) {
  for (CollectiveKind kind :
       {CollectiveKind::kAllgather, CollectiveKind::kGather, CollectiveKind::kAlltoall}) {
    Member member;
    member.Submit({Join()});
    TensorSpec spec = OfKind(kind, "rows", {6, 2});
    spec.root_rank = 1;
    member.PlanIn(0, 1, {"rows"}, {spec});
    ASSERT_THAT(member.All<LaunchBatch>(), SizeIs(1)) << Name(kind);
    EXPECT_THAT(member.All<LaunchBatch>()[0].absent[0].shape, ElementsAre(0, 2));
  }
}

TEST(WorkerStateJoin, EndsWithWhoJoinedLast) {
  Member member;
  member.Submit({Join()});
  member.Submit({Gradient("refused")});
  EXPECT_THAT(member.failure(2),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has joined")));
  v1::CoordinatorMessage message = member.Message();
  v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
  batch.set_sequence(1);
  batch.add_tensors(kJoinName);
  batch.set_last_joined_rank(2);
  member.Say(std::move(message));
  ASSERT_THAT(member.All<LaunchBatch>(), SizeIs(1));
  EXPECT_EQ(member.All<LaunchBatch>()[0].last_joined_rank, 2);
  member.Clear();
  member.Submit({Gradient("again")});
  EXPECT_THAT(member.reported(), ElementsAre("again"));
  // From now on a plan for what it has not submitted is wrong again.
  member.PlanIn(0, 2, {"other"}, {Gradient("other")});
  EXPECT_TRUE(absl::IsInternal(member.state().status()));
}

TEST(WorkerStateJoin, AsksForNoSetAndHearsOfWhatOthersCannotHave) {
  Member member;
  Ask(member, 5, {0, 2});
  member.Change(1, 1, {0, 2});
  member.Submit({Join()});
  member.Clear();
  Ask(member, 6, {1});
  ASSERT_THAT(member.All<ProcessSetAnswer>(), SizeIs(1));
  EXPECT_THAT(member.All<ProcessSetAnswer>()[0].status,
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has joined")));
  EXPECT_THAT(member.sent(v1::WorkerMessage::kProcessSetRequest), SizeIs(0));
  member.RefuseSet(2, absl::StatusCode::kFailedPrecondition, "rank 0 has joined");
  member.RefuseSet(3, absl::StatusCode::kFailedPrecondition, "rank 0 has joined");
  member.Fail(kJoinName, absl::StatusCode::kCancelled, "rank 1 withdrew it");
  member.Clear();
  Ask(member, 7, {1});
  const auto requests = member.sent(v1::WorkerMessage::kProcessSetRequest);
  ASSERT_THAT(requests, SizeIs(1));
  EXPECT_EQ(requests[0].process_set_request().request(), 4);
}

TEST(WorkerStateJoin, MayGoOnWhenTheJoinFails) {
  Member member;
  member.Submit({Join()});
  member.Fail(kJoinName, absl::StatusCode::kCancelled, "rank 1 withdrew it");
  EXPECT_THAT(member.failure(1), Not(IsOk()));
  member.Clear();
  member.Submit({Gradient("a")});
  EXPECT_THAT(member.reported(), ElementsAre("a"));
}

TEST(WorkerStateJoin, EndsTheGenerationOnSpecsThatAreNone) {
  TensorSpec bad = Gradient("a");
  bad.shape = {-1};
  for (const std::vector<TensorSpec>& specs :
       {std::vector<TensorSpec>{}, {Gradient("b")}, {bad}, {Gradient("a"), Gradient("b")}}) {
    Member member;
    member.Submit({Join()});
    member.PlanIn(0, 1, {"a"}, specs);
    EXPECT_TRUE(absl::IsInternal(member.state().status()));
    EXPECT_THAT(member.failure(1), Not(IsOk()));
  }
}

TEST(WorkerStateJoin, SaysWhichBatchFailedThoughItHasSubmittedNothingOfIt) {
  Member member;
  member.Submit({Join()});
  member.PlanIn(0, 1, {"other"}, {Gradient("other")});
  member.Clear();
  member.Done(1, absl::UnavailableError("rank 2 is gone"), Rank{2});
  const auto failed = member.sent(v1::WorkerMessage::kCollectiveFailed);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].collective_failed().tensor(), "other");
  EXPECT_EQ(failed[0].collective_failed().suspect_rank(), 2);
}

}  // namespace
}  // namespace coordd
