#include "server/job/rendezvous_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

SessionId S(int64_t id) { return SessionId{id}; }

RendezvousState Of(int32_t min_workers, int32_t max_workers) {
  return RendezvousState({.min_workers = min_workers, .max_workers = max_workers}, Generation{0},
                         kStart);
}

TEST(RendezvousState, FormsAtOnceAtMaxWorkers) {
  RendezvousState state = Of(1, 2);
  ASSERT_THAT(state.Join(S(7), kStart), IsOk());
  EXPECT_EQ(state.TryForm(kStart), std::nullopt);
  ASSERT_THAT(state.Join(S(3), kStart), IsOk());
  EXPECT_LE(state.NextDeadline(), kStart);
  EXPECT_THAT(state.TryForm(kStart), Optional(ElementsAre(S(7), S(3))));
  EXPECT_EQ(state.generation(), Generation{1});
  EXPECT_EQ(state.phase(), RendezvousPhase::kFormed);
}

TEST(RendezvousState, EveryOneMoreOpensTheSettlingWindowAnew) {
  RendezvousState state = Of(2, 0);
  ASSERT_THAT(state.Join(S(1), kStart), IsOk());
  EXPECT_EQ(state.NextDeadline(), absl::InfiniteFuture());
  ASSERT_THAT(state.Join(S(2), kStart), IsOk());
  EXPECT_EQ(state.NextDeadline(), kStart + absl::Seconds(1));
  ASSERT_THAT(state.Join(S(3), kStart + absl::Milliseconds(900)), IsOk());
  EXPECT_EQ(state.TryForm(kStart + absl::Milliseconds(1899)), std::nullopt);
  EXPECT_THAT(state.TryForm(kStart + absl::Milliseconds(1900)),
              Optional(ElementsAre(S(1), S(2), S(3))));
}

TEST(RendezvousState, OneThatComesAndGoesHoldsNobodyUp) {
  RendezvousState state = Of(2, 0);
  for (int id : {1, 2}) ASSERT_THAT(state.Join(S(id), kStart), IsOk());
  absl::Time now = kStart;
  for (int id = 3; id <= 11; ++id) {
    now += absl::Milliseconds(100);
    ASSERT_THAT(state.Join(S(id), now), IsOk());
    EXPECT_EQ(state.TryForm(now), std::nullopt);
    state.Remove(S(id), now);
  }
  EXPECT_THAT(state.TryForm(kStart + absl::Milliseconds(1100)), Optional(ElementsAre(S(1), S(2))));
}

TEST(RendezvousState, BelowTheMinimumTheWindowIsForgotten) {
  RendezvousState state = Of(2, 0);
  for (int id : {1, 2}) ASSERT_THAT(state.Join(S(id), kStart), IsOk());
  state.Remove(S(2), kStart);
  const absl::Time later = kStart + absl::Minutes(1);
  ASSERT_THAT(state.Join(S(3), later), IsOk());
  EXPECT_EQ(state.NextDeadline(), later + absl::Seconds(1));
}

TEST(RendezvousState, AWorkerThatGoesBeforeTheGenerationFormsIsNotMissed) {
  RendezvousState state = Of(2, 0);
  for (int id : {1, 2, 3}) ASSERT_THAT(state.Join(S(id), kStart), IsOk());
  state.Remove(S(2), kStart);
  EXPECT_THAT(state.TryForm(kStart + absl::Seconds(1)), Optional(ElementsAre(S(1), S(3))));
}

TEST(RendezvousState, OneWorkerIsNotSeveral) {
  RendezvousState state({.min_workers = 1, .max_workers_of_server = 1}, Generation{0}, kStart);
  ASSERT_THAT(state.Join(S(1), kStart), IsOk());
  EXPECT_THAT(state.Join(S(2), kStart), StatusIs(absl::StatusCode::kResourceExhausted,
                                                 HasSubstr("at most 1 worker per job")));
}

TEST(RendezvousState, IsFullAtMaxWorkersAlsoWhileRunning) {
  RendezvousState state = Of(1, 1);
  ASSERT_THAT(state.Join(S(1), kStart), IsOk());
  EXPECT_THAT(state.Join(S(2), kStart),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_workers is 1")));
  ASSERT_TRUE(state.TryForm(kStart).has_value());
  EXPECT_THAT(state.Join(S(2), kStart),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("the job is full")));
  state.Break(kStart);
  EXPECT_THAT(state.Join(S(2), kStart), IsOk());  // those of a broken generation are leaving
}

TEST(RendezvousState, ALostMemberBreaksTheGenerationAndTheNextWaitsForTheRest) {
  RendezvousState state = Of(2, 0);
  ASSERT_THAT(state.Join(S(1), kStart), IsOk());
  ASSERT_THAT(state.Join(S(2), kStart), IsOk());
  ASSERT_TRUE(state.TryForm(kStart + absl::Seconds(1)).has_value());
  state.Remove(S(1), kStart + absl::Seconds(2));
  EXPECT_EQ(state.phase(), RendezvousPhase::kBroken);
  ASSERT_THAT(state.Join(S(3), kStart + absl::Seconds(3)), IsOk());
  ASSERT_THAT(state.Join(S(4), kStart + absl::Seconds(3)), IsOk());
  EXPECT_EQ(state.TryForm(kStart + absl::Seconds(5)), std::nullopt);
  state.Remove(S(2), kStart + absl::Seconds(6));
  EXPECT_EQ(state.phase(), RendezvousPhase::kGathering);
  EXPECT_EQ(state.NextDeadline(), kStart + absl::Seconds(6) + absl::Milliseconds(20));
  EXPECT_THAT(state.TryForm(state.NextDeadline()), Optional(ElementsAre(S(3), S(4))));
  EXPECT_EQ(state.generation(), Generation{2});
}

TEST(RendezvousState, OnlySurvivorsAreInTheNextGenerationUnlessNobodyHasSurvived) {
  for (bool one_is_left : {true, false}) {
    RendezvousState state = Of(1, 3);
    ASSERT_THAT(state.Join(S(1), kStart), IsOk());
    ASSERT_THAT(state.Join(S(2), kStart), IsOk());
    ASSERT_TRUE(state.TryForm(kStart + absl::Seconds(1)).has_value());
    ASSERT_THAT(state.Join(S(3), kStart + absl::Seconds(1)), IsOk());
    const absl::Time lost = kStart + absl::Seconds(2);
    state.Remove(S(1), lost);
    if (!one_is_left) state.Remove(S(2), lost);
    state.ExpectRejoins(/*only=*/true);
    if (one_is_left) state.Rejoin(S(2), lost);
    EXPECT_THAT(state.TryForm(lost + absl::Minutes(1)),
                Optional(ElementsAre(one_is_left ? S(2) : S(3))));
  }
}

TEST(RendezvousState, EndsWithItsLastWorker) {
  RendezvousState state = Of(1, 1);
  ASSERT_THAT(state.Join(S(1), kStart), IsOk());
  ASSERT_TRUE(state.TryForm(kStart).has_value());
  state.Remove(S(1), kStart);
  EXPECT_EQ(state.phase(), RendezvousPhase::kEnded);
  EXPECT_EQ(state.NextDeadline(), absl::InfiniteFuture());
  EXPECT_THAT(state.CheckConsistency(), IsOk());
}

TEST(RendezvousState, MembersExpireWithoutHeartbeatsAndThoseWhoWaitDoNot) {
  RendezvousState state = Of(2, 2);
  ASSERT_THAT(state.Join(S(1), kStart), IsOk());
  EXPECT_THAT(state.Expired(kStart + absl::Hours(1)), IsEmpty());
  ASSERT_THAT(state.Join(S(2), kStart + absl::Hours(1)), IsOk());
  const absl::Time formed = kStart + absl::Hours(1);
  ASSERT_TRUE(state.TryForm(formed).has_value());
  state.Heard(S(1), formed + absl::Seconds(4));
  EXPECT_THAT(state.Expired(formed + absl::Seconds(9)), IsEmpty());
  EXPECT_THAT(state.Expired(formed + absl::Seconds(10)), ElementsAre(S(2)));
  state.Remove(S(2), formed + absl::Seconds(10));
  EXPECT_EQ(state.NextDeadline(), formed + absl::Seconds(14));
  EXPECT_THAT(state.CheckConsistency(), IsOk());
}

TEST(RendezvousState, SleepOfTheCoordinatorIsForgiven) {
  RendezvousState state = Of(1, 1);
  ASSERT_THAT(state.Join(S(1), kStart), IsOk());
  ASSERT_TRUE(state.TryForm(kStart).has_value());
  state.Forgive(absl::Seconds(60));
  EXPECT_THAT(state.Expired(kStart + absl::Seconds(69)), IsEmpty());
  EXPECT_THAT(state.Expired(kStart + absl::Seconds(70)), ElementsAre(S(1)));
}

TEST(RendezvousState, SaysWhatItWaitsFor) {
  RendezvousState state = Of(2, 0);
  ASSERT_THAT(state.Join(S(1), kStart), IsOk());
  EXPECT_EQ(state.Reason(kStart), "1 of at least 2 workers have joined");
  ASSERT_THAT(state.Join(S(2), kStart), IsOk());
  EXPECT_EQ(state.Reason(kStart + absl::Milliseconds(250)),
            "2 workers have joined, others may for another 750ms");
}

TEST(RendezvousState, SaysHowManyHaveGoneAgainUntilOthersCome) {
  RendezvousState state = Of(4, 4);
  for (int id : {1, 2, 3}) ASSERT_THAT(state.Join(S(id), kStart), IsOk());
  state.Remove(S(2), kStart);
  EXPECT_EQ(state.Reason(kStart), "2 of at least 4 workers have joined, 1 has gone again");
  state.Remove(S(3), kStart);
  EXPECT_EQ(state.Reason(kStart), "1 of at least 4 workers have joined, 2 have gone again");
  for (int id : {4, 5}) ASSERT_THAT(state.Join(S(id), kStart), IsOk());
  EXPECT_EQ(state.Reason(kStart), "3 of at least 4 workers have joined");
}

TEST(RendezvousState, WhoHasGoneBeforeAllHadIsForgotten) {
  RendezvousState state = Of(3, 3);
  for (int id : {1, 2}) ASSERT_THAT(state.Join(S(id), kStart), IsOk());
  for (int id : {1, 2}) state.Remove(S(id), kStart);
  ASSERT_THAT(state.Join(S(3), kStart), IsOk());
  EXPECT_EQ(state.Reason(kStart), "1 of at least 3 workers have joined");
}

}  // namespace
}  // namespace coordd
