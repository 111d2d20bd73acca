#include "server/generation/negotiated_sets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/support/generation_parts.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class NegotiatedSetsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    sets_.Settle();
    EXPECT_THAT(sets_.CheckConsistency(/*settled=*/true), IsOk());
  }

  GenerationParts parts_;
  NegotiatedSets& sets_ = parts_.sets;
};

TEST_F(NegotiatedSetsTest, ASetIsReadyOnceItIsSettled) {
  const ProcessSetId id = parts_.AddSet({0, 2});
  parts_.Submit(sets_.At(id), "w");
  EXPECT_FALSE(sets_.has_ready());
  sets_.Settle();
  EXPECT_THAT(sets_.TakeReady(), ElementsAre(id));
  EXPECT_FALSE(sets_.has_ready());
  sets_.At(id).table().TakeReady();
  sets_.Touch(sets_.At(id));
}

TEST_F(NegotiatedSetsTest, FindsTheOneThatStalls) {
  const ProcessSetId id = parts_.AddSet({0, 2});
  EXPECT_EQ(sets_.NextStall(), absl::InfiniteFuture());
  sets_.At(id).table().Report(Rank{0}, Gradient("w", {4}), kStart, parts_.failed);
  sets_.Touch(sets_.At(id));
  sets_.Settle();
  const absl::Time due = kStart + GenerationParts::kWarning;
  EXPECT_EQ(sets_.NextStall(), due);
  EXPECT_EQ(sets_.Stalling(due - absl::Seconds(1)), nullptr);
  EXPECT_EQ(sets_.Stalling(due), &sets_.At(id));
  sets_.Forgive(absl::Seconds(5));
  EXPECT_EQ(sets_.NextStall(), due + absl::Seconds(5));
  EXPECT_THAT(sets_.Stalled(due, absl::Seconds(1), 8), SizeIs(1));
  sets_.ForgetAll();
  EXPECT_EQ(sets_.NextStall(), absl::InfiniteFuture());
  sets_.Touch(sets_.At(id));
}

TEST_F(NegotiatedSetsTest, WhoIsNoMemberHearsWhoIs) {
  const ProcessSetId id = parts_.AddSet({0, 2});
  v1::TensorSpec tensor;
  tensor.set_name("w");
  tensor.set_process_set(ToInt(id));
  EXPECT_THAT(sets_.Of(Rank{0}, tensor), IsOk());
  EXPECT_THAT(sets_.Of(Rank{1}, tensor).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of ranks [0, 2]")));
  EXPECT_THAT(sets_.MaybeOf(Rank{1}, id), IsEmpty());
  sets_.Remove(id);
  EXPECT_EQ(sets_.Find(id), nullptr);
  EXPECT_THAT(sets_.Of(Rank{0}, tensor).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("")));
}

TEST_F(NegotiatedSetsTest, AJoinCountsInEachSetOfTheRankAlsoInLaterOnes) {
  std::vector<FailedTensor> refused;
  ASSERT_EQ(sets_.join().Join(Rank{2}, kStart, refused), JoinState::Outcome::kJoined);
  sets_.Join(Rank{2}, parts_.failed);
  const ProcessSetId later = parts_.AddSet({0, 2});
  for (SetNegotiation* set : {&sets_.OfAllRanks(), &sets_.At(later)}) {
    for (Rank rank : set->members().Ranks()) {
      if (rank != Rank{2}) set->table().Report(rank, Gradient("w", {4}), kStart, parts_.failed);
    }
    EXPECT_TRUE(set->table().has_ready());
    set->table().TakeReady();
  }
  EXPECT_THAT(parts_.failed, IsEmpty());
}

}  // namespace
}  // namespace coordd
