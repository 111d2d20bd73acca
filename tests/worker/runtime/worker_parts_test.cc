// The parts of a worker that its threads agree by: its end and that of a generation, and the
// callbacks of generations.
#include <gtest/gtest.h>

#include <thread>

#include "tests/support/status_matchers.h"
#include "worker/execute/generation_end.h"
#include "worker/runtime/generation_callbacks.h"
#include "worker/runtime/worker_ending.h"

namespace coordd {
namespace {

TEST(WorkerEndingTest, OneThreadEndsTheWorkerAndAllHaveItsResult) {
  WorkerEnding ending;
  EXPECT_TRUE(ending.Begin());
  EXPECT_FALSE(ending.Begin());
  EXPECT_EQ(ending.phase(), WorkerEnding::Phase::kEnds);
  ending.End(absl::DeadlineExceededError("by force"));
  EXPECT_FALSE(ending.Begin());
  EXPECT_EQ(ending.phase(), WorkerEnding::Phase::kEnded);
  EXPECT_EQ(ending.result().message(), "by force");
}

TEST(WorkerEndingTest, WhatIsAskedForAgainIsFinishedAgain) {
  WorkerEnding ending;
  ending.NoteWorkFinished();
  EXPECT_TRUE(ending.work_finished());
  ending.AskToFinish();
  EXPECT_FALSE(ending.work_finished());
  EXPECT_FALSE(ending.stopped());
  ending.NoteStopped();  // nothing is left to be finished
  EXPECT_TRUE(ending.work_finished());
}

absl::Status EndedBy(bool in_flight) {
  v1::Abort abort;
  abort.add_departures()->set_detail(in_flight ? "was lost" : "left");
  abort.set_in_flight(in_flight);
  return GenerationEndedBy(Generation{1}, abort);
}

TEST(GenerationEndTest, GoodbyesLetCallsFinishUntilSomethingElseHappens) {
  GenerationEnd end;
  EXPECT_FALSE(end.ended() || end.aborts());
  end.Set(EndedBy(/*in_flight=*/false));
  EXPECT_TRUE(end.ended());
  EXPECT_FALSE(end.aborts());
  end.Set(EndedBy(/*in_flight=*/true));
  EXPECT_TRUE(end.aborts());
  EXPECT_THAT(end.status(), StatusIs(absl::StatusCode::kAborted, ::testing::HasSubstr("was lost")));
  end.Set(absl::CancelledError("this worker has left the job"));
  EXPECT_THAT(end.status(), StatusIs(absl::StatusCode::kAborted, ::testing::HasSubstr("was lost")));
}

TEST(GenerationCallbacksTest, AnotherThreadFindsThemBusyAndTheirOwnDoesNot) {
  GenerationCallbacks callbacks;
  int32_t seen = -1;
  callbacks.Add([&](const Placement& entered) { seen = entered.rank; });
  EXPECT_TRUE(callbacks.idle());
  Placement place;
  place.rank = 3;
  for (const auto& callback : callbacks.Begin()) (*callback)(place);
  EXPECT_EQ(seen, 3);
  EXPECT_TRUE(callbacks.idle());
  std::thread([&] { EXPECT_FALSE(callbacks.idle()); }).join();
  callbacks.End();
  std::thread([&] { EXPECT_TRUE(callbacks.idle()); }).join();
  callbacks.Clear();
  EXPECT_TRUE(callbacks.Begin().empty());
}

}  // namespace
}  // namespace coordd
