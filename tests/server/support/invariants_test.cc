// The checker itself: each broken promise must turn it red, or the fuzzers prove nothing.
#include "tests/server/support/invariants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/support/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr Epoch kFirstEpoch{1};

class HistoryCheckerTest : public ::testing::Test {
 protected:
  void Joins(int64_t session) {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf("w");
    message.mutable_join()->set_knows_slots(true);
    checker_.Saw(SessionMessage{SessionId{session}, message});
  }
  static v1::CoordinatorMessage Membership(int64_t generation, int32_t rank, int32_t size) {
    v1::CoordinatorMessage message;
    message.set_epoch(ToInt(kFirstEpoch));
    message.set_generation(generation);
    v1::Membership* m = message.mutable_membership();
    m->set_rank(rank);
    m->set_size(size);
    m->set_local_rank(rank);
    m->set_local_size(size);
    m->set_cross_size(1);
    m->set_slots(2);
    m->add_nodes()->set_nodes(1);
    m->mutable_nodes(0)->set_ranks_per_node(size);
    return message;
  }
  static v1::CoordinatorMessage Plan(int64_t sequence, const std::string& tensor) {
    v1::CoordinatorMessage message;
    message.set_generation(1);
    v1::FusedBatch* batch = message.mutable_plan()->add_batches();
    batch->set_sequence(sequence);
    batch->add_tensors(tensor);
    return message;
  }
  // A plan that gives the tensor the slot, and one that means it by the slot.
  static v1::CoordinatorMessage PlanThatGives(int64_t sequence, const std::string& tensor,
                                              int64_t slot) {
    v1::CoordinatorMessage message = Plan(sequence, tensor);
    v1::SlotBinding* binding = message.mutable_plan()->add_bindings();
    binding->set_slot(slot);
    binding->set_name(tensor);
    return message;
  }
  static v1::CoordinatorMessage PlanOfSlot(int64_t sequence, int64_t slot) {
    v1::CoordinatorMessage message = Plan(sequence, "");
    message.mutable_plan()->mutable_batches(0)->clear_tensors();
    message.mutable_plan()->mutable_batches(0)->add_slots(slot);
    return message;
  }
  static Outgoing To(std::vector<SessionId> sessions, const v1::CoordinatorMessage& message) {
    return Deliver{std::move(sessions), std::make_shared<v1::CoordinatorMessage>(message)};
  }
  absl::Status Sends(std::vector<Outgoing> outgoing) {
    Effects effects;
    effects.outgoing = std::move(outgoing);
    return checker_.Saw(effects);
  }
  static v1::CoordinatorMessage PlanInSet(int32_t set, int64_t sequence,
                                          const std::string& tensor) {
    v1::CoordinatorMessage message = Plan(sequence, tensor);
    message.mutable_plan()->mutable_batches(0)->set_process_set(set);
    message.mutable_plan()->mutable_batches(0)->set_lane(set);
    return message;
  }
  static v1::CoordinatorMessage Change(int64_t request, int32_t set,
                                       const std::vector<int32_t>& ranks) {
    v1::CoordinatorMessage message;
    message.set_generation(1);
    v1::ProcessSetChange* change = message.mutable_process_set_change();
    change->set_request(request);
    change->set_process_set(set);
    change->mutable_ranks()->Assign(ranks.begin(), ranks.end());
    return message;
  }
  void Submits(int64_t session, const std::string& tensor, int32_t set = 0) {
    v1::WorkerMessage message = MessageOf(kFirstEpoch, Generation{1});
    v1::TensorSpec* spec = message.mutable_tensors_ready()->add_tensors();
    spec->set_name(tensor);
    spec->set_process_set(set);
    checker_.Saw(SessionMessage{SessionId{session}, message});
  }
  void SubmitsSlot(int64_t session, int64_t slot) {
    v1::WorkerMessage message = MessageOf(kFirstEpoch, Generation{1});
    v1::CachedTensors* cached = message.mutable_tensors_ready()->add_cached();
    cached->set_known(slot);
    cached->set_first_slot(slot);
    cached->set_bits("\x01");
    checker_.Saw(SessionMessage{SessionId{session}, message});
  }
  // Both ranks submit tensors, which are planned and given slots 1, 2, …
  void FormWithSlots(const std::vector<std::string>& tensors) {
    Form();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto slot = static_cast<int64_t>(i) + 1;
      Submits(1, tensors[i]);
      Submits(2, tensors[i]);
      ASSERT_THAT(Sends({To({kA, kB}, PlanThatGives(slot, tensors[i], slot))}), IsOk());
    }
  }
  void Receives(int64_t session, const std::string& tensor, int32_t from) {
    v1::WorkerMessage message = MessageOf(kFirstEpoch, Generation{1});
    v1::TensorSpec* spec = message.mutable_tensors_ready()->add_tensors();
    spec->set_name(tensor);
    spec->set_kind(v1::COLLECTIVE_KIND_RECEIVE);
    spec->set_peer_rank(from);
    checker_.Saw(SessionMessage{SessionId{session}, message});
  }
  static v1::CoordinatorMessage Failure(const std::string& tensor) {
    v1::CoordinatorMessage message;
    message.set_generation(1);
    v1::TensorFailure* failure = message.mutable_tensor_failures()->add_failures();
    failure->set_name(tensor);
    failure->set_code(3);
    failure->set_message("differs");
    return message;
  }
  void AsksForSet(int64_t session, int64_t request) {
    v1::WorkerMessage message = MessageOf(kFirstEpoch, Generation{1});
    message.mutable_process_set_request()->set_request(request);
    checker_.Saw(SessionMessage{SessionId{session}, message});
  }
  // Both ranks ask for set 1, of rank 0 alone, and get it.
  void FormWithSet() {
    Form();
    AsksForSet(1, 1);
    AsksForSet(2, 1);
    ASSERT_THAT(Sends({To({kA, kB}, Change(1, 1, {0}))}), IsOk());
  }
  // Two ranks in generation 1.
  void Form() {
    Joins(1);
    Joins(2);
    ASSERT_THAT(Sends({To({kA}, Membership(1, 0, 2)), To({kB}, Membership(1, 1, 2))}), IsOk());
  }

  static constexpr SessionId kA{1};
  static constexpr SessionId kB{2};
  HistoryChecker checker_;
};

auto Red(const std::string& text) { return StatusIs(Code::kInternal, HasSubstr(text)); }

TEST_F(HistoryCheckerTest, AcceptsAnHonestHistory) {
  Form();
  Submits(1, "a");
  Submits(2, "a");
  EXPECT_THAT(Sends({To({kA, kB}, Plan(1, "a"))}), IsOk());
}

TEST_F(HistoryCheckerTest, SeesARankGivenTwice) {
  Joins(1);
  Joins(2);
  EXPECT_THAT(Sends({To({kA}, Membership(1, 0, 2)), To({kB}, Membership(1, 0, 2))}),
              Red("rank 0 is given twice"));
}

TEST_F(HistoryCheckerTest, SeesARankThatNobodyHolds) {
  Joins(1);
  EXPECT_THAT(Sends({To({kA}, Membership(1, 0, 2))}), Red("ranks that nobody holds"));
}

TEST_F(HistoryCheckerTest, SeesAPlaceThatContradictsTheNodes) {
  Joins(1);
  v1::CoordinatorMessage wrong = Membership(1, 0, 1);
  wrong.mutable_membership()->set_cross_size(2);
  EXPECT_THAT(Sends({To({kA}, wrong)}), Red("contradicts the nodes"));
}

TEST_F(HistoryCheckerTest, SeesAGenerationThatDoesNotGrow) {
  Joins(1);
  ASSERT_THAT(Sends({To({kA}, Membership(2, 0, 1))}), IsOk());
  Joins(2);
  EXPECT_THAT(Sends({To({kB}, Membership(1, 0, 1))}), Red("generation 1 follows 2"));
}

TEST_F(HistoryCheckerTest, SeesAMemberThatJoinsLate) {
  Form();
  Joins(3);
  EXPECT_THAT(Sends({To({SessionId{3}}, Membership(1, 1, 2))}), Red("late"));
}

TEST_F(HistoryCheckerTest, SeesAPlanThatSkipsARank) {
  Form();
  Submits(1, "a");
  Submits(2, "a");
  Submits(1, "b");
  Submits(2, "b");
  ASSERT_THAT(Sends({To({kA, kB}, Plan(1, "a")), To({kA}, Plan(2, "b"))}), IsOk());
  EXPECT_THAT(Sends({To({kB}, Plan(3, "b"))}), Red("gap"));
}

TEST_F(HistoryCheckerTest, SeesPlansThatDifferBetweenRanks) {
  Form();
  for (int64_t session : {1, 2}) {
    Submits(session, "a");
    Submits(session, "b");
  }
  EXPECT_THAT(Sends({To({kA}, Plan(1, "a")), To({kB}, Plan(1, "b"))}), Red("differs"));
}

TEST_F(HistoryCheckerTest, SeesATensorPlannedThatARankDidNotSubmit) {
  Form();
  Submits(1, "a");
  EXPECT_THAT(Sends({To({kA, kB}, Plan(1, "a"))}), Red("not submitted by rank 1"));
}

TEST_F(HistoryCheckerTest, SeesASubmissionAnsweredTwice) {
  Form();
  Submits(1, "a");
  ASSERT_THAT(Sends({To({kA}, Failure("a"))}), IsOk());
  EXPECT_THAT(Sends({To({kA}, Failure("a"))}), Red("without a submission"));
}

TEST_F(HistoryCheckerTest, SeesAPlanAfterTheEndOfItsGeneration) {
  Form();
  Submits(1, "a");
  Submits(2, "a");
  v1::CoordinatorMessage abort;
  abort.set_generation(1);
  abort.mutable_abort();
  EXPECT_THAT(Sends({To({kA, kB}, abort), To({kA, kB}, Plan(1, "a"))}), Red("has ended"));
}

TEST_F(HistoryCheckerTest, AcceptsAnHonestProcessSet) {
  FormWithSet();
  Submits(1, "a", 1);
  Submits(1, "a");
  Submits(2, "a");
  EXPECT_THAT(Sends({To({kA}, PlanInSet(1, 1, "a")), To({kA, kB}, Plan(1, "a"))}), IsOk());
  AsksForSet(1, 2);
  AsksForSet(2, 2);
  EXPECT_THAT(Sends({To({kA, kB}, Change(2, 1, {}))}), IsOk());
}

TEST_F(HistoryCheckerTest, SeesAPlanForASetThatARankDoesNotKnow) {
  Form();
  Submits(1, "a", 1);
  EXPECT_THAT(Sends({To({kA}, PlanInSet(1, 1, "a"))}), Red("process set 1, which rank 0 does not"));
}

TEST_F(HistoryCheckerTest, SeesAPlanForARankThatIsNoMember) {
  FormWithSet();
  Submits(2, "a", 1);
  EXPECT_THAT(Sends({To({kB}, PlanInSet(1, 1, "a"))}), Red("process set 1, which rank 1 does not"));
}

TEST_F(HistoryCheckerTest, SeesAPlanBehindTheEndOfItsSet) {
  FormWithSet();
  AsksForSet(1, 2);
  AsksForSet(2, 2);
  Submits(1, "a", 1);
  EXPECT_THAT(Sends({To({kA, kB}, Change(2, 1, {})), To({kA}, PlanInSet(1, 1, "a"))}),
              Red("does not know"));
}

TEST_F(HistoryCheckerTest, SeesATensorOfAnotherSet) {
  FormWithSet();
  Submits(1, "a");
  EXPECT_THAT(Sends({To({kA}, PlanInSet(1, 1, "a"))}), Red("not submitted by rank 0"));
}

TEST_F(HistoryCheckerTest, SeesAGapInTheNumbersOfALane) {
  FormWithSet();
  Submits(1, "a", 1);
  EXPECT_THAT(Sends({To({kA}, PlanInSet(1, 2, "a"))}), Red("gap"));
}

TEST_F(HistoryCheckerTest, SeesARequestAnsweredTwice) {
  FormWithSet();
  EXPECT_THAT(Sends({To({kA}, Change(1, 1, {0}))}), Red("does not wait for"));
}

TEST_F(HistoryCheckerTest, SeesRanksThatGetDifferentAnswers) {
  Form();
  AsksForSet(1, 1);
  AsksForSet(2, 1);
  EXPECT_THAT(Sends({To({kA}, Change(1, 1, {0})), To({kB}, Change(1, 1, {1}))}),
              Red("answered differently"));
}

TEST_F(HistoryCheckerTest, SeesANumberThatIsUsedAgain) {
  FormWithSet();
  for (int64_t session : {1, 2}) {
    AsksForSet(session, 2);
    AsksForSet(session, 3);
  }
  EXPECT_THAT(Sends({To({kA, kB}, Change(2, 1, {})), To({kA, kB}, Change(3, 1, {0}))}),
              Red("announced twice"));
}

TEST_F(HistoryCheckerTest, SeesAPairToldToOthers) {
  Form();
  EXPECT_THAT(Sends({To({kA}, Change(0, 1, {0, 1}))}), IsOk());
  EXPECT_THAT(Sends({To({kB}, Change(0, 2, {0, 2}))}), Red("a pair of others"));
}

TEST_F(HistoryCheckerTest, SeesWhatIsToldOfANamedSetThatTheRankHasNotAskedFor) {
  Form();
  v1::CoordinatorMessage named = Change(0, 1, {0, 1});
  named.mutable_process_set_change()->set_name("tp");
  v1::WorkerMessage asks = MessageOf(kFirstEpoch, Generation{1});
  asks.mutable_process_set_request()->set_name("tp");
  checker_.Saw(SessionMessage{SessionId{kA}, asks});
  EXPECT_THAT(Sends({To({kA}, named)}), IsOk());
  EXPECT_THAT(Sends({To({kB}, named)}), Red("does not wait for"));
}

TEST_F(HistoryCheckerTest, LetsOnlyARankThatHasJoinedTakePartUnasked) {
  Form();
  v1::CoordinatorMessage plan = Plan(1, "a");
  plan.mutable_plan()->mutable_batches(0)->add_specs()->set_name("a");
  Submits(1, "a");
  Submits(2, "join");
  ASSERT_THAT(Sends({To({kA, kB}, plan)}), IsOk());
  Submits(1, "join");
  ASSERT_THAT(Sends({To({kA, kB}, Plan(2, "join"))}), IsOk());
  Submits(1, "a");
  plan.mutable_plan()->mutable_batches(0)->set_sequence(3);
  EXPECT_THAT(Sends({To({kA, kB}, plan)}), Red("not submitted by rank 1"));
}

TEST_F(HistoryCheckerTest, KnowsWhatARankReceivesFromWhatItHasNoDataFor) {
  Form();
  Receives(2, "a", /*from=*/0);
  Submits(2, "join");
  Submits(1, "a");
  v1::CoordinatorMessage plan = Plan(1, "a");
  plan.mutable_plan()->mutable_batches(0)->add_specs()->set_name("a");
  ASSERT_THAT(Sends({To({kA, kB}, plan)}), IsOk());
  // What it waits for is still open, once.
  ASSERT_THAT(Sends({To({kB}, Failure("a"))}), IsOk());
  EXPECT_THAT(Sends({To({kB}, Failure("a"))}), Red("without a submission of rank 1"));
}

TEST_F(HistoryCheckerTest, TakesAFailureForEitherOfTwoTensorsOfOneName) {
  Form();
  Receives(2, "a", /*from=*/0);
  Submits(2, "a");
  ASSERT_THAT(Sends({To({kB}, Failure("a"))}), IsOk());
  ASSERT_THAT(Sends({To({kB}, Failure("a"))}), IsOk());
  EXPECT_THAT(Sends({To({kB}, Failure("a"))}), Red("without a submission of rank 1"));
}

TEST_F(HistoryCheckerTest, SeesAPlanWithoutSpecsForARankThatHasJoined) {
  Form();
  Submits(1, "a");
  Submits(2, "join");
  EXPECT_THAT(Sends({To({kA, kB}, Plan(1, "a"))}), Red("not submitted by rank 1"));
}

TEST_F(HistoryCheckerTest, AcceptsHonestSlots) {
  FormWithSlots({"a", "b"});
  for (int64_t slot : {2, 1}) {
    SubmitsSlot(1, slot);
    Submits(2, slot == 1 ? "a" : "b");
  }
  EXPECT_THAT(Sends({To({kA, kB}, PlanOfSlot(3, 2)), To({kA, kB}, PlanOfSlot(4, 1))}), IsOk());
}

TEST_F(HistoryCheckerTest, SeesASlotThatIsAnotherTensorThanWasReported) {
  FormWithSlots({"a", "b"});
  SubmitsSlot(1, 1);
  SubmitsSlot(2, 1);
  EXPECT_THAT(Sends({To({kA, kB}, PlanOfSlot(3, 2))}),
              Red("tensor b is planned, but not submitted by rank 0"));
}

TEST_F(HistoryCheckerTest, SeesASlotThatWasNotGiven) {
  FormWithSlots({"a"});
  SubmitsSlot(1, 1);
  SubmitsSlot(2, 1);
  EXPECT_THAT(Sends({To({kA, kB}, PlanOfSlot(2, 2))}), Red("slot 2 of process set 0 is planned"));
}

TEST_F(HistoryCheckerTest, SeesASlotThatMembersHaveForgotten) {
  FormWithSlots({"a", "b", "c"});
  SubmitsSlot(1, 1);
  SubmitsSlot(2, 1);
  EXPECT_THAT(Sends({To({kA, kB}, PlanOfSlot(4, 1))}), Red("has heard up to 3 and keeps 2"));
}

TEST_F(HistoryCheckerTest, SeesASlotThatOneRankHasNotHeardOf) {
  Form();
  Submits(1, "a");
  Submits(2, "a");
  ASSERT_THAT(Sends({To({kA}, PlanThatGives(1, "a", 1)), To({kB}, Plan(1, "a"))}), IsOk());
  SubmitsSlot(1, 1);
  Submits(2, "a");
  EXPECT_THAT(Sends({To({kA, kB}, PlanOfSlot(2, 1))}), Red("rank 1 has heard up to 0"));
}

TEST_F(HistoryCheckerTest, SeesASlotGivenOutOfItsOrder) {
  FormWithSlots({"a"});
  Submits(1, "b");
  Submits(2, "b");
  EXPECT_THAT(Sends({To({kA, kB}, PlanThatGives(2, "b", 3))}), Red("out of its order"));
}

TEST_F(HistoryCheckerTest, SeesASlotGivenTwice) {
  FormWithSlots({"a"});
  Submits(1, "b");
  Submits(2, "b");
  EXPECT_THAT(Sends({To({kA, kB}, PlanThatGives(2, "b", 1))}), Red("out of its order"));
}

TEST_F(HistoryCheckerTest, SeesASlotThatIsTwoTensors) {
  Form();
  for (int64_t session : {1, 2}) {
    Submits(session, "a");
    Submits(session, "b");
  }
  v1::CoordinatorMessage first = PlanThatGives(1, "a", 1), second = first;
  for (v1::CoordinatorMessage* plan : {&first, &second})
    plan->mutable_plan()->mutable_batches(0)->add_tensors("b");
  second.mutable_plan()->mutable_bindings(0)->set_name("b");
  EXPECT_THAT(Sends({To({kA}, first), To({kB}, second)}), Red("is a for one rank and b for"));
}

TEST_F(HistoryCheckerTest, SeesASlotForATensorThatIsNotPlannedWithIt) {
  Form();
  Submits(1, "a");
  Submits(2, "a");
  v1::CoordinatorMessage plan = PlanThatGives(1, "a", 1);
  plan.mutable_plan()->mutable_bindings(0)->set_name("b");
  EXPECT_THAT(Sends({To({kA, kB}, plan)}), Red("a tensor that the plan does not name"));
}

TEST_F(HistoryCheckerTest, SeesSlotsForAWorkerThatDoesNotKnowThem) {
  v1::WorkerMessage message;
  *message.mutable_join() = JoinOf("w");
  checker_.Saw(SessionMessage{kA, message});
  EXPECT_THAT(Sends({To({kA}, Membership(1, 0, 1))}), Red("and does not know them"));
}

TEST_F(HistoryCheckerTest, SeesAMessageToAClosedSession) {
  Form();
  EXPECT_THAT(Sends({CloseSession{kA, absl::OkStatus()}, To({kA}, Plan(1, "a"))}), Red("closed"));
}

TEST_F(HistoryCheckerTest, SeesACallAnsweredTwice) {
  checker_.Saw(StoreCall{CallId{1}, "train", "", StoreGet{"k"}});
  ASSERT_THAT(Sends({StoreReply{.call = CallId{1}}}), IsOk());
  EXPECT_THAT(Sends({StoreReply{.call = CallId{1}}}), Red("call"));
}

}  // namespace
}  // namespace coordd
