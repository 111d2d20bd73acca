// The parts of a worker that its threads agree by: its end, and the callbacks of generations.
#include <gtest/gtest.h>

#include <thread>

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
