#include "server/generation/set_negotiation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/support/generation_parts.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::IsEmpty;
using ::testing::Optional;

class SetNegotiationTest : public ::testing::Test {
 protected:
  // Plans what is ready; the tensors in it get slots.
  v1::CollectivePlan Plan() {
    const std::vector<ReadyTensor> ready = set_.table().TakeReady();
    std::vector<size_t> all;
    for (size_t i = 0; i < ready.size(); ++i) all.push_back(i);
    std::vector<const ReadyTensor*> unknown;
    v1::CollectivePlan plan;
    set_.FillBatch(ready, all, /*by_slots=*/true, unknown, plan.add_batches());
    set_.Bind(unknown, &plan);
    return plan;
  }
  int64_t GiveSlot(const std::string& name) {
    parts_.Submit(set_, name);
    return Plan().bindings(0).slot();
  }
  void HearAll(int64_t known) {
    for (int32_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(set_.Heard(Rank{rank}, known));
  }

  GenerationParts parts_;
  SetNegotiation& set_ = parts_.sets.OfAllRanks();
  std::vector<FailedTensor> failed_;
};

TEST_F(SetNegotiationTest, APlanNamesATensorOnceAndThenByItsSlot) {
  parts_.Submit(set_, "w");
  const v1::CollectivePlan first = Plan();
  EXPECT_THAT(first.batches(0).tensors(), ElementsAre("w"));
  EXPECT_THAT(first.bindings(0).name(), Eq("w"));
  parts_.Submit(set_, "w");
  const v1::CollectivePlan second = Plan();
  EXPECT_THAT(second.batches(0).tensors(), IsEmpty());
  EXPECT_THAT(second.batches(0).slots(), ElementsAre(first.bindings(0).slot()));
  EXPECT_THAT(second.bindings(), IsEmpty());
}

TEST_F(SetNegotiationTest, AMemberCannotHaveHeardOfASlotThatWasNotGiven) {
  GiveSlot("w");
  EXPECT_TRUE(set_.Heard(Rank{1}, 1));
  EXPECT_TRUE(set_.HaveHeard({Rank{1}}, 1));
  EXPECT_FALSE(set_.HaveHeard({Rank{0}, Rank{1}}, 1));
  EXPECT_FALSE(set_.Heard(Rank{2}, 2));
  EXPECT_FALSE(set_.Heard(Rank{3}, 1)) << "it is no member";
}

TEST_F(SetNegotiationTest, ReportsOfTheSameSlotsCountOneRankAfterTheOther) {
  GiveSlot("v");
  const int64_t last = GiveSlot("w");
  HearAll(last);
  const v1::CachedTensors report = ReportOfSlots({last - 1, last}, last);
  for (int32_t rank = 0; rank < 3; ++rank)
    EXPECT_THAT(set_.CountAlike(report, Rank{rank}, kStart), Optional(2));
  EXPECT_TRUE(set_.table().has_ready());
}

TEST_F(SetNegotiationTest, ReportsOfSeveralRanksCountForEach) {
  const int64_t slot = GiveSlot("w");
  HearAll(slot);
  const v1::CachedTensors report = ReportOfSlots({slot}, slot);
  const ReadinessTable::Reporters two(set_.members(), Ranks({1, 2}));
  EXPECT_THAT(set_.CountShared(report, two, kStart, failed_), Optional(2));
  EXPECT_EQ(set_.CountShared(report, two, kStart, failed_), std::nullopt) << "pending already";
  EXPECT_FALSE(set_.table().has_ready());
}

TEST_F(SetNegotiationTest, WhatIsNotPendingIsLeftToTheCaller) {
  const int64_t slot = GiveSlot("w");
  HearAll(slot);
  std::vector<std::string> others;
  const auto note = [&](ReadinessTable::Known& known) { others.push_back(known.spec.name); };
  auto counted = set_.Count(ReportOfSlots({slot}, slot), Rank{0}, true, kStart, note, failed_);
  EXPECT_EQ(counted.tensors, 0);
  EXPECT_EQ(counted.unknown, 0);
  EXPECT_THAT(others, ElementsAre("w"));
  counted = set_.Count(ReportOfSlots({slot + 1}, slot), Rank{0}, true, kStart, note, failed_);
  EXPECT_EQ(counted.unknown, slot + 1);
}

TEST_F(SetNegotiationTest, NumbersItsBatchesAndGoesOnWhereItWas) {
  EXPECT_EQ(set_.NextSequence(), 1);
  set_.RestoreSequence(41);
  EXPECT_EQ(set_.NextSequence(), 42);
}

TEST_F(SetNegotiationTest, APairIsAnnouncedOnceAndOtherSetsNever) {
  v1::TensorSpec send;
  send.set_name("x");
  send.set_kind(v1::COLLECTIVE_KIND_SEND);
  send.set_peer_rank(2);
  SetNegotiation& pair = **parts_.sets.Of(Rank{0}, send);
  EXPECT_TRUE(pair.TakeAnnouncement());
  EXPECT_FALSE(pair.TakeAnnouncement());
  EXPECT_FALSE(set_.TakeAnnouncement());
}

}  // namespace
}  // namespace coordd
