#include "server/generation/comm_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kWarning = absl::Seconds(60);

class CommWaitsTest : public ::testing::Test {
 protected:
  static v1::CommWait Wait(const std::string& call, int seconds,
                           std::vector<int32_t> missing = {}) {
    v1::CommWait wait;
    wait.set_comm("torch");
    wait.set_call(call);
    ToProto(absl::Seconds(seconds), wait.mutable_waiting());
    for (const int32_t rank : missing) wait.add_missing_ranks(rank);
    return wait;
  }
  void Tell(int32_t rank, const std::vector<v1::CommWait>& waits) {
    v1::Heartbeat heartbeat;
    for (const v1::CommWait& wait : waits) *heartbeat.add_comm_waits() = wait;
    waits_.Note(Rank{rank}, heartbeat.comm_waits(), now_);
  }
  std::vector<PendingTensor> All() const { return waits_.Stalled(now_, absl::ZeroDuration(), 100); }

  ProcessSets sets_{4};
  CommWaits waits_{sets_};
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(CommWaitsTest, WhoIsToldToBeMissingAndDoesNotWaitInItIsMissing) {
  Tell(0, {Wait("allreduce number 7", 2, {2, 3})});
  Tell(1, {Wait("allreduce number 7", 1, {2, 3})});
  ASSERT_EQ(All().size(), 1u);
  EXPECT_EQ(All()[0].name, "comm torch: allreduce number 7");
  EXPECT_EQ(All()[0].since, now_ - absl::Seconds(2));
  EXPECT_THAT(All()[0].ready, ElementsAre(Rank{0}, Rank{1}));
  EXPECT_THAT(All()[0].missing, ElementsAre(Rank{2}, Rank{3}));
  Tell(3, {Wait("allreduce number 7", 1, {2})});
  EXPECT_THAT(All()[0].missing, ElementsAre(Rank{2}));
  EXPECT_EQ(All()[0].missing_count, 1);
  EXPECT_EQ(All()[0].ready_count, 3);
}

TEST_F(CommWaitsTest, OfASetWhoDoesNotWaitIsMissing) {
  v1::CommWait wait = Wait("barrier number 1", 2);
  wait.set_process_set(0);
  Tell(1, {wait});
  EXPECT_THAT(All()[0].missing, ElementsAre(Rank{0}, Rank{2}, Rank{3}));
  wait.set_process_set(99);  // it has ended
  Tell(1, {});
  Tell(1, {wait});
  EXPECT_THAT(All()[0].missing, IsEmpty());
}

TEST_F(CommWaitsTest, EachStallIsToldOnceAndEndsWithTheLastWhoWaits) {
  Tell(0, {Wait("allreduce number 7", 50, {2})});
  EXPECT_EQ(waits_.NextStall(kWarning), now_ + absl::Seconds(10));
  EXPECT_THAT(waits_.NewlyStalled(now_, kWarning), IsEmpty());
  now_ += absl::Seconds(10);
  EXPECT_EQ(waits_.NewlyStalled(now_, kWarning).size(), 1u);
  EXPECT_THAT(waits_.NewlyStalled(now_, kWarning), IsEmpty());
  EXPECT_EQ(waits_.NextStall(kWarning), absl::InfiniteFuture());
  Tell(1, {Wait("allreduce number 7", 1, {2})});
  EXPECT_EQ(waits_.stalled(), 1);
  Tell(0, {Wait("allreduce number 8", 1, {1})});
  EXPECT_EQ(waits_.stalled(), 1);
  Tell(1, {});
  EXPECT_EQ(waits_.stalled(), 0);
  EXPECT_EQ(All().size(), 1u);
  Tell(0, {});
  EXPECT_TRUE(waits_.empty());
  EXPECT_EQ(waits_.NextStall(kWarning), absl::InfiniteFuture());
}

TEST_F(CommWaitsTest, AMessageThatSaysTheSameIsAnotherOne) {
  Tell(0, {Wait("receive of tag 0 from rank 1", 60, {1})});
  EXPECT_EQ(waits_.NewlyStalled(now_, kWarning).size(), 1u);
  now_ += absl::Seconds(2);
  Tell(0, {Wait("receive of tag 0 from rank 1", 62, {1})});
  EXPECT_EQ(waits_.stalled(), 1);
  now_ += absl::Seconds(10);  // its heartbeat was under way for so long
  Tell(0, {Wait("receive of tag 0 from rank 1", 63, {1})});
  EXPECT_EQ(waits_.stalled(), 1);
  now_ += absl::Seconds(2);
  Tell(0, {Wait("receive of tag 0 from rank 1", 1, {1})});
  EXPECT_EQ(waits_.stalled(), 0);
  EXPECT_EQ(All()[0].since, now_ - absl::Seconds(1));
}

TEST_F(CommWaitsTest, ARankWaitsLongestInItsOldest) {
  Tell(0, {Wait("allreduce number 7", 2), Wait("allreduce number 3", 5)});
  EXPECT_EQ(waits_.LongestOf(Rank{0})->name, "comm torch: allreduce number 3");
  EXPECT_FALSE(waits_.LongestOf(Rank{1}).has_value());
  EXPECT_EQ(waits_.Stalled(now_, absl::ZeroDuration(), 1).size(), 1u);
}

// What others forge takes no more room.
TEST_F(CommWaitsTest, KeepsNoMoreThanItMay) {
  for (int32_t rank = 0; rank < 5000; ++rank)
    Tell(rank, {Wait(absl::StrCat("allreduce number ", rank), 2)});
  EXPECT_EQ(waits_.Stalled(now_, absl::ZeroDuration(), 10000).size(), CommWaits::kMaxCalls);
  EXPECT_FALSE(waits_.LongestOf(Rank{4999}).has_value());
  for (int32_t rank = 0; rank < 5000; ++rank) Tell(rank, {});
  EXPECT_TRUE(waits_.empty());
  EXPECT_THAT(All(), IsEmpty());
}

TEST_F(CommWaitsTest, ForgivesWhatCoorddHasSlept) {
  Tell(0, {Wait("allreduce number 7", 50)});
  waits_.Forgive(absl::Seconds(30));
  EXPECT_EQ(waits_.NextStall(kWarning), now_ + absl::Seconds(40));
  waits_.ForgetAll();
  EXPECT_TRUE(waits_.empty());
}

}  // namespace
}  // namespace coordd
