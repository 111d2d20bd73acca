// What a rank keeps of what coordd has said, and of which set it says that it was.
#include "worker/protocol/heard_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "worker/protocol/arriving_membership.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

v1::CoordinatorMessage At(int64_t position) {
  v1::CoordinatorMessage message;
  message.set_position(position);
  return message;
}
v1::ProcessSetChange Change(int32_t set, int64_t request) {
  v1::ProcessSetChange change;
  change.set_process_set(set);
  change.set_request(request);
  change.add_ranks(0);
  return change;
}

TEST(HeardMessagesTest, KeepsWhatOthersMayLackWithTheSetToWhichItWent) {
  HeardMessages heard(/*last_process_set=*/0);
  v1::CoordinatorMessage plan = At(1);
  plan.mutable_plan()->add_batches()->set_process_set(3);
  v1::CoordinatorMessage cut = At(2);
  cut.mutable_cut()->set_id(1);
  v1::CoordinatorMessage failures = At(3);  // of no use to others
  failures.mutable_tensor_failures();
  v1::CoordinatorMessage pair = At(4);
  *pair.mutable_process_set_change() = Change(5, 0);
  v1::CoordinatorMessage asked = At(5);
  *asked.mutable_process_set_change() = Change(6, 1);
  heard.NoteSet(ProcessSetId{4});
  for (const auto& message : {plan, cut, failures, pair, asked, plan}) heard.Keep(message);
  std::vector<std::pair<int64_t, int32_t>> kept;
  heard.log().ForEach([&](ProcessSetId to, const v1::CoordinatorMessage& message) {
    kept.emplace_back(message.position(), ToInt(to));
  });
  EXPECT_THAT(kept, ElementsAre(Pair(1, 3), Pair(2, 4), Pair(4, 5), Pair(5, 0)));
}

TEST(HeardMessagesTest, KnowsTheNumbersOfSetsAndWhereTheLastWasChangedForAll) {
  HeardMessages heard(/*last_process_set=*/2);
  heard.Begin(7);
  heard.NoteChange(Change(4, 1));
  heard.Begin(8);
  heard.NoteChange(Change(3, 0));  // a pair
  EXPECT_EQ(heard.last_process_set(), 4);
  EXPECT_EQ(heard.sets_position(), 7);
}

TEST(ArrivingMembershipTest, IsWholeWithItsLastProcessSets) {
  ArrivingMembership arriving;
  v1::CoordinatorMessage membership;
  membership.set_generation(2);
  membership.mutable_membership()->set_process_sets_follow(true);
  v1::CoordinatorMessage sets;
  sets.set_generation(2);
  sets.mutable_process_sets()->add_sets()->set_process_set(1);
  EXPECT_EQ(arriving.Take(sets).status().code(), absl::StatusCode::kInternal);

  EXPECT_FALSE((*arriving.Take(membership)).has_value());
  sets.mutable_process_sets()->set_more(true);
  EXPECT_FALSE((*arriving.Take(sets)).has_value());
  sets.mutable_process_sets()->set_more(false);
  const auto whole = arriving.Take(sets);
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_EQ((*whole)->sets.sets_size(), 2);
  EXPECT_FALSE(arriving.Take(sets).ok());

  EXPECT_FALSE((*arriving.Take(membership)).has_value());
  arriving.Forget();
  EXPECT_FALSE(arriving.Take(sets).ok());
}

}  // namespace
}  // namespace coordd
