// A whole worker against a coordd that the test plays.
#include "worker/runtime/worker_impl.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/thread.h"
#include "tests/support/http_client.h"
#include "tests/worker/support/worker_impl_fixture.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(WorkerImplTest, ExecutesWhatItsCoordinatorPlans) {
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  EXPECT_EQ(coordinator_.Receive().join().worker_id(), "worker-0");
  auto work = (*worker)->Submit(Sum("grad"));
  ASSERT_THAT(work, IsOk());
  const v1::WorkerMessage ready = coordinator_.ReceiveNext();
  ASSERT_EQ(ready.tensors_ready().tensors_size(), 1);
  EXPECT_EQ(ready.tensors_ready().tensors(0).name(), "grad");
  EXPECT_FALSE((*work)->done());
  Plan(1, "grad");
  EXPECT_THAT((*work)->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  EXPECT_EQ((*work)->result().size, 1);
  EXPECT_EQ((*work)->result().generation, Generation{1});
  EXPECT_THAT(values_, ElementsAre(1, 2, 3, 4));
  Stop(**worker);
}

TEST_F(WorkerImplTest, SaysGoodbyeAndWaitsForTheAnswer) {
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  std::thread coordd = StartThread("coordd", [this] {
    coordinator_.Receive();  // the Join
    EXPECT_TRUE(coordinator_.ReceiveNext().has_leave());
    coordinator_.End(absl::OkStatus());
  });
  EXPECT_THAT((*worker)->Shutdown(kHangLimit), IsOk());
  coordd.join();
  EXPECT_THAT((*worker)->status(), StatusIs(absl::StatusCode::kCancelled, HasSubstr("left")));
  EXPECT_THAT((*worker)->Shutdown(kHangLimit), IsOk());  // once more is no harm
}

TEST_F(WorkerImplTest, IsStoppedByForceWhenItsCoordinatorDoesNotAnswer) {
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  auto work = (*worker)->Submit(Sum("grad"));
  ASSERT_THAT(work, IsOk());
  EXPECT_THAT((*worker)->Shutdown(absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("by force")));
  EXPECT_TRUE((*work)->done());
  EXPECT_THAT((*work)->Wait(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("tensor grad")));
}

TEST_F(WorkerImplTest, ACallerThatWaitsExecutesWhatItsCoordinatorPlans) {
  hold_ = true;
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  std::thread caller = StartThread("caller", [&] {
    auto work = (*worker)->SubmitAndWait(Sum("grad"), Clock::Real().Now() + kHangLimit);
    ASSERT_THAT(work, IsOk());
    EXPECT_TRUE((*work)->done());
    EXPECT_THAT((*work)->Wait(absl::InfinitePast()), IsOk());
  });
  EXPECT_EQ(coordinator_.ReceiveNext().tensors_ready().tensors(0).name(), "grad");
  Plan(1, "grad");
  held_.AwaitLaunch(LaneId{0});
  held_.Release(LaneId{0});
  caller.join();
  Stop(**worker);
}

TEST_F(WorkerImplTest, ReturnsAWorkThatIsNotDoneWhenTheWaitEnds) {
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  auto work = (*worker)->SubmitAndWait(Sum("grad"), absl::InfinitePast());
  ASSERT_THAT(work, IsOk());
  EXPECT_FALSE((*work)->done());
  EXPECT_EQ(coordinator_.ReceiveNext().tensors_ready().tensors(0).name(), "grad");
  Plan(1, "grad");
  EXPECT_THAT((*work)->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  Stop(**worker);
}

TEST_F(WorkerImplTest, AShutdownEndsWhatACallerDrives) {
  hold_ = true;
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  std::thread caller = StartThread("caller", [&] {
    auto work = (*worker)->SubmitAndWait(Sum("grad"), absl::InfiniteFuture());
    ASSERT_THAT(work, IsOk());
    EXPECT_THAT((*work)->Wait(absl::InfinitePast()),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("tensor grad")));
  });
  coordinator_.ReceiveNext();
  Plan(1, "grad");
  held_.AwaitLaunch(LaneId{0});
  EXPECT_FALSE((*worker)->Shutdown(absl::Milliseconds(1)).ok());
  caller.join();
}

TEST_F(WorkerImplTest, AnAbortEndsWhatACallerDrives) {
  hold_ = true;
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  std::thread caller = StartThread("caller", [&] {
    auto work = (*worker)->SubmitAndWait(Sum("grad"), absl::InfiniteFuture());
    ASSERT_THAT(work, IsOk());
    EXPECT_THAT((*work)->Wait(absl::InfinitePast()),
                StatusIs(absl::StatusCode::kAborted, HasSubstr("tensor grad")));
  });
  coordinator_.ReceiveNext();
  Plan(1, "grad");
  held_.AwaitLaunch(LaneId{0});
  v1::CoordinatorMessage abort = Message();
  abort.mutable_abort()->set_in_flight(true);
  coordinator_.Say(abort);
  caller.join();
  Stop(**worker);
}

TEST_F(WorkerImplTest, GoesOnInTheNextGenerationOnceItsProgramKnowsOfIt) {
  options_.on_failure = OnFailure::kRaise;
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  EXPECT_EQ(coordinator_.Receive().join().on_failure(), v1::ON_FAILURE_RAISE);
  auto lost = (*worker)->Submit(Sum("grad"));
  ASSERT_THAT(lost, IsOk());
  coordinator_.ReceiveNext();
  ChangeGeneration();
  const absl::Status why = (*lost)->Wait(Clock::Real().Now() + kHangLimit);
  EXPECT_THAT(why, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
  EXPECT_TRUE(IsGenerationChanged(why));
  // Until it says so, the program is in the old one.
  EXPECT_TRUE(IsGenerationChanged((*worker)->Submit(Sum("grad")).status()));
  EXPECT_TRUE(IsGenerationChanged((*worker)->AddProcessSet({0}, kHangLimit).status()));
  EXPECT_EQ((*worker)->placement().generation, Generation{1});
  const auto place = (*worker)->AwaitGeneration(Clock::Real().Now() + kHangLimit);
  ASSERT_THAT(place, IsOk());
  EXPECT_EQ(place->generation, Generation{2});
  EXPECT_EQ((*worker)->placement().generation, Generation{2});
  EXPECT_THAT((*worker)->status(), IsOk());
  auto work = (*worker)->Submit(Sum("grad"));
  ASSERT_THAT(work, IsOk());
  EXPECT_EQ(coordinator_.ReceiveNext().generation(), 2);
  Plan(1, "grad");
  EXPECT_THAT((*work)->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  EXPECT_EQ((*work)->result().generation, Generation{2});
  Stop(**worker);
}

TEST_F(WorkerImplTest, AwaitsANextGenerationNoLongerThanItsCallerWants) {
  options_.on_failure = OnFailure::kRaise;
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  // As long as nothing has happened there is nothing to wait for.
  EXPECT_THAT((*worker)->AwaitGeneration(absl::InfinitePast()), IsOk());
  v1::CoordinatorMessage abort = Message();
  abort.mutable_abort()->set_in_flight(true);
  abort.mutable_abort()->set_reforms(true);
  coordinator_.Say(abort);
  EXPECT_TRUE(coordinator_.ReceiveNext().has_recovery_report());
  EXPECT_THAT(
      (*worker)->AwaitGeneration(absl::InfinitePast()),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("no generation has followed")));
  coordinator_.End(absl::DeadlineExceededError("nobody came"));
  EXPECT_THAT((*worker)->AwaitGeneration(Clock::Real().Now() + kHangLimit),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("nobody came")));
  Stop(**worker);
}

TEST_F(WorkerImplTest, ManyThreadsSubmitWhileGenerationsChange) {
  options_.on_failure = OnFailure::kRaise;
  constexpr int kThreads = 3;
  constexpr int64_t kGenerations = 20;
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  std::vector<std::thread> callers;
  for (int t = 0; t < kThreads; ++t) {
    callers.push_back(StartThread("caller", [&, t] {
      float values[4] = {1, 2, 3, 4};
      while (true) {
        Submission submission = Sum(absl::StrCat("grad", t));
        submission.input = submission.output = values;
        auto work =
            (*worker)->SubmitAndWait(std::move(submission), Clock::Real().Now() + kHangLimit);
        const absl::Status status = work.ok() ? (*work)->Wait(absl::InfinitePast()) : work.status();
        EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
        if (!IsGenerationChanged(status)) return;
        if (!(*worker)->AwaitGeneration(Clock::Real().Now() + kHangLimit).ok()) return;
      }
    }));
  }
  v1::CoordinatorMessage abort;
  abort.mutable_abort()->set_in_flight(true);
  abort.mutable_abort()->set_reforms(true);
  while (generation_ < kGenerations) {
    abort.set_epoch(1);
    abort.set_generation(generation_);
    coordinator_.Say(abort);
    while (!coordinator_.ReceiveNext().has_recovery_report()) {
    }
    ++generation_;
    SayMembership();
  }
  abort.set_generation(generation_);
  abort.mutable_abort()->set_reforms(false);
  coordinator_.Say(abort);
  for (std::thread& caller : callers) caller.join();
  Stop(**worker);
}

TEST_F(WorkerImplTest, TakesSubmissionsOfManyThreadsAtOnce) {
  // Whoever submits also carries out what the others' steps have left.
  constexpr int kThreads = 4, kTensors = 50;
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  std::vector<std::thread> callers;
  for (int t = 0; t < kThreads; ++t) {
    callers.push_back(StartThread("caller", [&, t] {
      for (int i = 0; i < kTensors; ++i) {
        float values[4] = {1, 2, 3, 4};
        Submission submission = Sum(absl::StrCat("grad", t));
        submission.input = submission.output = values;
        auto work =
            (*worker)->SubmitAndWait(std::move(submission), Clock::Real().Now() + kHangLimit);
        ASSERT_THAT(work, IsOk());
        ASSERT_THAT((*work)->Wait(absl::InfinitePast()), IsOk());
      }
    }));
  }
  int64_t planned = 0;
  while (planned < kThreads * kTensors) {
    const v1::WorkerMessage message = coordinator_.ReceiveNext();
    for (const v1::TensorSpec& tensor : message.tensors_ready().tensors())
      Plan(++planned, tensor.name());
  }
  for (std::thread& caller : callers) caller.join();
  Stop(**worker);
}

TEST_F(WorkerImplTest, ReportsABackendThatCannotBeMade) {
  backend_status_ = absl::FailedPreconditionError("no UCX");
  EXPECT_THAT(Start(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no UCX")));
}

// Its program hears of that with its first collective.
TEST_F(WorkerImplTest, StartsWhereSomebodyHasLeftBeforeItsDataPlaneWasConnected) {
  connect_status_ = PeerLost(Rank{1}, "its connection ended");
  coordinator_.on_start = [this] {
    SayMembership();
    v1::CoordinatorMessage abort = Message();
    v1::Departure& departure = *abort.mutable_abort()->add_departures();
    departure.set_rank(1);
    departure.set_cause(v1::DEPARTURE_CAUSE_LEFT);
    coordinator_.Say(abort);
  };
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  EXPECT_EQ((*worker)->placement().rank, 0);
  EXPECT_THAT((*worker)->Submit(Sum("grad")),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 1")));
  Stop(**worker);
}

TEST_F(WorkerImplTest, DoesNotStartWhereSomebodyIsLostBeforeItsDataPlaneWasConnected) {
  connect_status_ = PeerLost(Rank{1}, "its connection ended");
  coordinator_.on_start = [this] {
    SayMembership();
    v1::CoordinatorMessage abort = Message();
    abort.mutable_abort()->set_in_flight(true);
    abort.mutable_abort()->set_reason("rank 1 (host node3, pid 4711) was lost");
    coordinator_.Say(abort);
  };
  std::thread coordd = StartThread("coordd", [this] {
    coordinator_.Receive();  // the Join
    coordinator_.ReceiveNext();
    coordinator_.End(absl::OkStatus());
  });
  EXPECT_THAT(Start(), StatusIs(absl::StatusCode::kAborted,
                                AllOf(HasSubstr("could not be connected"), HasSubstr("pid 4711"))));
  coordd.join();
}

TEST_F(WorkerImplTest, RefusesAMembershipThatContradictsItself) {
  coordinator_.on_start = [this] {
    v1::CoordinatorMessage message = Message();
    message.mutable_membership()->set_size(2);
    message.mutable_membership()->set_rank(5);
    coordinator_.Say(message);
  };
  EXPECT_THAT(Start(), StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 5 of 2")));
}

TEST_F(WorkerImplTest, ServesItsMetricsAtTheAddressThatItAnnounces) {
  options_.metrics = HostPort{"127.0.0.1", 0};
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  EXPECT_EQ(coordinator_.Receive().join().metrics_address(), (*worker)->metrics_address());
  auto work = (*worker)->Submit(Sum("grad"));
  ASSERT_THAT(work, IsOk());
  coordinator_.ReceiveNext();
  Plan(1, "grad");
  EXPECT_THAT((*work)->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  const std::string metrics =
      HttpGet(*ParseHostPort((*worker)->metrics_address()), "/metrics").body;
  EXPECT_THAT(metrics,
              AllOf(HasSubstr("coordd_worker_collectives_total{backend=\"loopback\",code=\"OK\","
                              "kind=\"allreduce\"} 1"),
                    HasSubstr("coordd_worker_payload_bytes_total{backend=\"loopback\","
                              "kind=\"allreduce\"} 16"),
                    HasSubstr("coordd_worker_generation 1")));
  EXPECT_EQ(HttpGet(*ParseHostPort((*worker)->metrics_address()), "/healthz").body, "ok\n");
  Stop(**worker);
}

TEST_F(WorkerImplTest, AddsAndRemovesProcessSetsAsItsCoordinatorSays) {
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  EXPECT_THAT((*worker)->AddProcessSet({1}, kHangLimit),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[1]")));
  std::thread coordd = StartThread("coordd", [this] {
    v1::CoordinatorMessage message = Message();
    EXPECT_THAT(coordinator_.ReceiveNext().process_set_request().ranks(), ElementsAre(0));
    message.mutable_process_set_change()->set_request(1);
    message.mutable_process_set_change()->set_process_set(4);
    message.mutable_process_set_change()->add_ranks(0);
    coordinator_.Say(message);
    EXPECT_EQ(coordinator_.ReceiveNext().tensors_ready().tensors(0).process_set(), 4);
    v1::CoordinatorMessage plan = Message();
    v1::FusedBatch& batch = *plan.mutable_plan()->add_batches();
    batch.set_sequence(1);
    batch.set_lane(4);
    batch.set_process_set(4);
    batch.add_tensors("grad");
    coordinator_.Say(plan);
    EXPECT_EQ(coordinator_.ReceiveNext().process_set_request().remove(), 4);
    message.mutable_process_set_change()->set_request(2);
    message.mutable_process_set_change()->clear_ranks();
    coordinator_.Say(message);
  });
  EXPECT_THAT((*worker)->AddProcessSet({0}, kHangLimit), IsOkAndHolds(ProcessSetId{4}));
  EXPECT_THAT((*worker)->ProcessSetRanks(ProcessSetId{4}), IsOkAndHolds(ElementsAre(0)));
  Submission submission = Sum("grad");
  submission.spec.process_set = ProcessSetId{4};
  auto work = (*worker)->Submit(submission);
  ASSERT_THAT(work, IsOk());
  EXPECT_THAT((*work)->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  EXPECT_EQ((*work)->result().size, 1);
  EXPECT_THAT((*worker)->RemoveProcessSet(ProcessSetId{4}, kHangLimit), IsOk());
  coordd.join();
  EXPECT_THAT((*worker)->Submit(submission),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tensor grad"), HasSubstr("process set 4"))));
  Stop(**worker);
}

TEST_F(WorkerImplTest, AnswersACallForAProcessSetWhenItIsShutDown) {
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  std::thread caller = StartThread("caller", [&] {
    EXPECT_THAT((*worker)->AddProcessSet({0}, kHangLimit),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("process set of ranks [0]")));
  });
  EXPECT_TRUE(coordinator_.ReceiveNext().has_process_set_request());
  EXPECT_FALSE((*worker)->Shutdown(absl::Milliseconds(1)).ok());  // nobody answers the goodbye
  caller.join();
}

TEST_F(WorkerImplTest, AJoinOutlastsTheTimeoutOfCollectives) {
  options_.collective_timeout = absl::Milliseconds(1);
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  Submission join;
  join.spec.name = kJoinName;
  join.spec.kind = CollectiveKind::kJoin;
  join.spec.dtype = DataType::kInt32;
  const auto work = (*worker)->Submit(std::move(join));
  ASSERT_THAT(work, IsOk());
  // Longer than it takes to give up, if it did.
  EXPECT_THAT((*work)->Wait(absl::Now() + absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("still running")));
  EXPECT_FALSE((*work)->done());
  EXPECT_THAT((*worker)->AddProcessSet({0}, kHangLimit),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has joined")));
  Stop(**worker);
}

TEST_F(WorkerImplTest, RefusesSubmissionsWhileItHasJoined) {
  auto worker = Start();
  ASSERT_THAT(worker, IsOk());
  coordinator_.Receive();  // the Join
  Submission join;
  join.spec.name = kJoinName;
  join.spec.kind = CollectiveKind::kJoin;
  join.spec.dtype = DataType::kInt32;
  auto work = (*worker)->Submit(join);
  ASSERT_THAT(work, IsOk());
  EXPECT_THAT((*worker)->Submit(Sum("grad")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has joined")));
  EXPECT_TRUE(coordinator_.ReceiveNext().has_tensors_ready());
  Plan(1, kJoinName);
  EXPECT_THAT((*work)->Wait(Clock::Real().Now() + kHangLimit), IsOk());
  EXPECT_EQ((*work)->result().output_bytes, 4);
  EXPECT_THAT((*worker)->Submit(Sum("grad")), IsOk());
  Stop(**worker);
}

}  // namespace
}  // namespace coordd
