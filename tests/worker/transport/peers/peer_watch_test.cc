#include "worker/transport/peers/peer_watch.h"

#include <gtest/gtest.h>

#include "tests/support/start_time.h"

namespace coordd {
namespace {

// Asks as the transport does, every `kPatience`, and hears nothing.
absl::Time AskInVain(PeerWatch& watch, int32_t times, absl::Time now) {
  for (int32_t i = 0; i < times; ++i) {
    EXPECT_TRUE(watch.WantsProbe(now));
    watch.Asked(now);
    EXPECT_FALSE(watch.PatienceIsOver(now + PeerWatch::kPatience - absl::Nanoseconds(1)));
    now += PeerWatch::kPatience;
    EXPECT_TRUE(watch.PatienceIsOver(now));
    watch.NotAnswered();
  }
  return now;
}

PeerWatch Reachable() {
  PeerWatch watch;
  watch.Asked(kStart);
  watch.Answered(kStart);
  return watch;
}

TEST(PeerWatch, AsksAtOnceAndThenOnlyWhenNothingComes) {
  PeerWatch watch;
  watch.Moved(kStart);
  EXPECT_TRUE(watch.WantsProbe(kStart));
  watch.Asked(kStart);
  watch.Answered(kStart);
  const absl::Time quiet = kStart + PeerWatch::kQuiet;
  EXPECT_FALSE(watch.WantsProbe(quiet - absl::Nanoseconds(1)));
  EXPECT_TRUE(watch.WantsProbe(quiet));
  watch.Moved(quiet);
  EXPECT_FALSE(watch.WantsProbe(quiet));
  EXPECT_TRUE(watch.WantsProbe(quiet + PeerWatch::kQuiet));
}

TEST(PeerWatch, SilenceIsManyQuestionsWithoutAnAnswer) {
  PeerWatch watch = Reachable();
  absl::Time now = kStart + PeerWatch::kQuiet;
  now = AskInVain(watch, PeerWatch::kUnanswered - 1, now);
  EXPECT_FALSE(watch.silent(false));
  AskInVain(watch, 1, now);
  EXPECT_TRUE(watch.silent(false));
}

TEST(PeerWatch, OneAnswerIsEnough) {
  PeerWatch watch = Reachable();
  absl::Time now = AskInVain(watch, PeerWatch::kUnanswered - 1, kStart + PeerWatch::kQuiet);
  watch.Asked(now);
  watch.Answered(now);
  EXPECT_FALSE(watch.WantsProbe(now));
  AskInVain(watch, PeerWatch::kUnanswered - 1, now + PeerWatch::kQuiet);
  EXPECT_FALSE(watch.silent(false));
}

TEST(PeerWatch, WhatComesIsAnAnswerToo) {
  PeerWatch watch = Reachable();
  const absl::Time now = AskInVain(watch, PeerWatch::kUnanswered, kStart + PeerWatch::kQuiet);
  watch.Moved(now);
  EXPECT_FALSE(watch.silent(false));
}

TEST(PeerWatch, ANetworkThatNeverLetsQuestionsThroughProvesNothing) {
  PeerWatch watch;
  AskInVain(watch, 3 * PeerWatch::kUnanswered, kStart);
  EXPECT_FALSE(watch.silent(/*connects=*/false));
  EXPECT_TRUE(watch.silent(/*connects=*/true));
}

}  // namespace
}  // namespace coordd
