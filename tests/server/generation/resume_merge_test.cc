#include "server/generation/resume_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/support/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kFrozen = 3, kCut = 4, kRemoved = 5;  // positions

// Set 1 of ranks 0 and 1, whose removal is request 2; rank 2 is in none but 0.
class ResumeMergeTest : public ::testing::Test {
 protected:
  ResumeMergeTest() : reports_(3) {
    for (MemberReport& member : reports_) {
      member.position = kFrozen;
      member.rest.set_answered_requests(1);
      member.rest.set_last_process_set(1);
    }
    v1::ProcessSetChange& set = *reports_[0].rest.add_process_sets();
    set.set_request(1);
    set.set_process_set(1);
    set.add_ranks(0);
    set.add_ranks(1);
  }
  static v1::CoordinatorMessage At(int64_t position) {
    v1::CoordinatorMessage message;
    message.set_position(position);
    return message;
  }
  void Hears(int32_t rank, const v1::CoordinatorMessage& message, int32_t to) {
    MemberReport& member = reports_[static_cast<size_t>(rank)];
    member.position = message.position();
    v1::ResumeReport part;
    *part.add_received() = message;
    part.add_received_by(to);
    ASSERT_THAT(member.Add(part, heard_), IsOk());
  }
  void HearsOfTheCut(int32_t rank) {
    v1::CoordinatorMessage cut = At(kCut);
    cut.mutable_cut()->set_id(1);
    cut.mutable_cut()->set_position(8);
    Hears(rank, cut, 1);
  }
  void HearsOfTheRemoval(int32_t rank, int64_t position = kRemoved) {
    v1::CoordinatorMessage removed = At(position);
    removed.mutable_process_set_change()->set_request(2);
    removed.mutable_process_set_change()->set_process_set(1);
    Hears(rank, removed, 0);
    MemberReport& member = reports_[static_cast<size_t>(rank)];
    member.rest.set_answered_requests(2);
    if (rank == 0) member.rest.clear_process_sets();
  }

  std::vector<MemberReport> reports_;
  HeardMessages heard_;
};

std::vector<int32_t> SetsOf(const ResumedGeneration& resumed) {
  std::vector<int32_t> sets;
  for (const ResumedGeneration::Set& set : resumed.sets) sets.push_back(ToInt(set.id));
  return sets;
}

// The cut was said to ranks 0 and 1 before, and is lost with coordd: they must not be told of the
// end of a set whose schedule they still execute.
TEST_F(ResumeMergeTest, ARemovalThatNoMemberHasHeardIsAnsweredAnew) {
  HearsOfTheRemoval(2);
  const auto resumed = MergeReports(reports_, heard_);
  ASSERT_THAT(resumed, IsOk());
  EXPECT_THAT(SetsOf(*resumed), ElementsAre(0, 1));
  ASSERT_THAT(resumed->removals, SizeIs(1));
  EXPECT_EQ(resumed->removals[0].request, 2);
  EXPECT_EQ(resumed->removals[0].process_set, ProcessSetId{1});
  EXPECT_THAT(resumed->missed, ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(resumed->answered_requests, ElementsAre(1, 1, 2));
  EXPECT_EQ(resumed->position, kRemoved);
}

TEST_F(ResumeMergeTest, ARemovalThatAMemberHasHeardIsToldWithWhatPrecedesIt) {
  HearsOfTheCut(1);
  HearsOfTheRemoval(1);
  const auto resumed = MergeReports(reports_, heard_);
  ASSERT_THAT(resumed, IsOk());
  EXPECT_THAT(SetsOf(*resumed), ElementsAre(0));
  EXPECT_THAT(resumed->removals, IsEmpty());
  EXPECT_THAT(resumed->missed, ElementsAre(SizeIs(2), IsEmpty(), SizeIs(1)));
  EXPECT_TRUE(resumed->missed[0][0]->has_cut());
  EXPECT_THAT(resumed->answered_requests, ElementsAre(2, 2, 2));
}

// It was answered anew once already: rank 2 heard of it before the others, at an earlier position.
TEST_F(ResumeMergeTest, TheEndOfANamedSetIsToldToTheMemberThatHasNotHeardIt) {
  v1::ProcessSetChange& set = *reports_[0].rest.mutable_process_sets(0);
  set.set_request(0);
  set.set_name("tp");
  v1::CoordinatorMessage removed = At(kRemoved);
  removed.mutable_process_set_change()->set_name("tp");
  removed.mutable_process_set_change()->set_process_set(1);
  Hears(0, removed, /*to=*/1);
  const auto merged = MergeReports(reports_, heard_);
  ASSERT_THAT(merged, IsOk());
  EXPECT_THAT(merged->missed[0], IsEmpty());
  EXPECT_THAT(merged->missed[1], SizeIs(1)) << "its numbered requests say nothing of it";
  EXPECT_THAT(merged->missed[2], IsEmpty());
  EXPECT_THAT(merged->removals, IsEmpty());
  EXPECT_THAT(merged->sets, SizeIs(1)) << "that of all ranks";
}

TEST_F(ResumeMergeTest, ANamedSetIsRestoredWithItsName) {
  v1::ProcessSetChange& set = *reports_[0].rest.mutable_process_sets(0);
  set.set_request(0);
  set.set_name("tp");
  const auto merged = MergeReports(reports_, heard_);
  ASSERT_THAT(merged, IsOk());
  ASSERT_THAT(merged->sets, SizeIs(2));
  EXPECT_EQ(merged->sets[1].name, "tp");
  EXPECT_FALSE(merged->sets[1].is_pair);
}

TEST_F(ResumeMergeTest, NobodyIsToldOfARemovalTwice) {
  reports_[2].rest.set_answered_requests(2);
  HearsOfTheRemoval(0);
  const auto resumed = MergeReports(reports_, heard_);
  ASSERT_THAT(resumed, IsOk());
  EXPECT_THAT(resumed->missed, ElementsAre(IsEmpty(), SizeIs(1), IsEmpty()));
}

TEST_F(ResumeMergeTest, WhoHasHeardOfNeitherOfTwoAnswersIsToldOne) {
  HearsOfTheRemoval(2);
  HearsOfTheRemoval(0, kRemoved + 1);
  const auto resumed = MergeReports(reports_, heard_);
  ASSERT_THAT(resumed, IsOk());
  EXPECT_THAT(SetsOf(*resumed), ElementsAre(0));
  ASSERT_THAT(resumed->missed, ElementsAre(IsEmpty(), SizeIs(1), IsEmpty()));
  EXPECT_EQ(resumed->missed[1][0]->position(), kRemoved + 1);
}

// coordd was started again once already, and dies again before it has answered anew: what it has
// said since is behind the end that only rank 2 has heard.
TEST_F(ResumeMergeTest, ARemovalThatNoMemberHasHeardIsStillThatWhenTheyHaveHeardMore) {
  HearsOfTheRemoval(2);
  v1::CoordinatorMessage plan = At(kRemoved + 1);
  plan.mutable_plan();
  Hears(0, plan, 1);
  Hears(1, plan, 1);
  const auto resumed = MergeReports(reports_, heard_);
  ASSERT_THAT(resumed, IsOk());
  EXPECT_THAT(SetsOf(*resumed), ElementsAre(0, 1));
  EXPECT_THAT(resumed->removals, SizeIs(1));
  EXPECT_THAT(resumed->missed, ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
}

TEST_F(ResumeMergeTest, WhatManyReportIsThereOnce) {
  HearsOfTheCut(0);
  const int64_t once = heard_.bytes();
  HearsOfTheCut(1);
  EXPECT_EQ(heard_.bytes(), once);
  EXPECT_EQ(heard_.at(reports_[0].received[0]).said_by, 2);
  HearsOfTheRemoval(2, kCut);
  EXPECT_GT(heard_.bytes(), once);
  EXPECT_THAT(MergeReports(reports_, heard_).status(),
              StatusIs(absl::StatusCode::kInternal,
                       "ranks 0 and 2 were told different things at position 4"));
  heard_.Release(reports_[2].received);
  heard_.Release(reports_[0].received);
  EXPECT_EQ(heard_.bytes(), once);
  heard_.Release(reports_[1].received);
  EXPECT_EQ(heard_.bytes(), 0);
}

TEST_F(ResumeMergeTest, WhatWentToNobodyIsNoReport) {
  v1::ResumeReport part;
  part.add_received()->set_position(1);
  EXPECT_THAT(reports_[0].Add(part, heard_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "a ResumeReport with 1 messages that went to 0 process sets"));
  EXPECT_EQ(heard_.bytes(), 0);
}

TEST_F(ResumeMergeTest, ARemovalThatAllMembersHaveForgottenIsOne) {
  HearsOfTheRemoval(2);
  for (int32_t rank : {0, 1}) {
    reports_[static_cast<size_t>(rank)].position = kRemoved;
    reports_[static_cast<size_t>(rank)].rest.set_answered_requests(2);
  }
  reports_[0].rest.clear_process_sets();
  v1::CoordinatorMessage added = At(1);
  added.mutable_process_set_change()->set_request(1);
  added.mutable_process_set_change()->set_process_set(1);
  added.mutable_process_set_change()->add_ranks(0);
  added.mutable_process_set_change()->add_ranks(1);
  v1::ResumeReport earlier;
  *earlier.add_received() = added;
  earlier.add_received_by(0);
  ASSERT_THAT(reports_[2].Add(earlier, heard_), IsOk());
  const auto resumed = MergeReports(reports_, heard_);
  ASSERT_THAT(resumed, IsOk());
  EXPECT_THAT(SetsOf(*resumed), ElementsAre(0));
  EXPECT_THAT(resumed->removals, IsEmpty());
}

// A report of a few hundred kilobytes, and members that say that they have heard nothing.
TEST(ResumeMerge, TellsNobodyMoreAgainThanThereIsRoomFor) {
  constexpr int kRanks = 500;
  for (const int messages : {400, 20000}) {
    HeardMessages heard;
    std::vector<MemberReport> reports(kRanks);
    v1::ResumeReport part;
    for (int i = 1; i <= messages; ++i) {
      v1::CoordinatorMessage& message = *part.add_received();
      message.set_position(i);
      message.mutable_freeze()->set_id(i);
      part.add_received_by(0);
    }
    reports[7].position = messages;
    ASSERT_THAT(reports[7].Add(part, heard), IsOk());
    const auto resumed = MergeReports(reports, heard);
    if (messages == 400) {
      ASSERT_THAT(resumed, IsOk());
      EXPECT_THAT(resumed->missed[0], SizeIs(messages));
      EXPECT_THAT(resumed->missed[7], IsEmpty());
    } else {
      EXPECT_THAT(resumed.status(), StatusIs(absl::StatusCode::kResourceExhausted,
                                             HasSubstr("rank 7 on the one of")));
    }
  }
}

// In one turn these were 24 and 18 million: seconds, in which nobody was heard.
TEST(ResumeMerge, LooksAtMuchOverTurns) {
  constexpr int kRanks = 20, kEntries = 5000;
  constexpr int64_t kBefore = int64_t{1} << 40;
  HeardMessages heard;
  v1::ResumeReport part;
  for (int i = 1; i <= kEntries; ++i) {
    v1::CoordinatorMessage& message = *part.add_received();
    message.set_position(kBefore + i);
    message.mutable_freeze()->set_id(i);
    part.add_received_by(0);
    v1::LanePosition& lane = *part.add_lanes();
    lane.set_lane(i);
    lane.set_launched(i);
  }
  std::vector<MemberReport> reports(kRanks);
  std::vector<const MemberReport*> all;
  for (MemberReport& report : reports) {
    report.position = kBefore + kEntries;
    ASSERT_THAT(report.Add(part, heard), IsOk());
    report.launched.push_back({0, 7});
    all.push_back(&report);
  }
  const v1::ProcessSets none;
  ReportMerge merge(all, heard, {&none});
  constexpr int kEntriesATurn = 1000;
  int turns = 1;
  auto merged = merge.Continue(kEntriesATurn);
  for (; !merged.has_value(); ++turns) merged = merge.Continue(kEntriesATurn);
  EXPECT_GT(turns, 2 * kRanks * kEntries / kEntriesATurn);
  EXPECT_LT(turns, 5 * kRanks * kEntries / kEntriesATurn);
  ASSERT_THAT(*merged, IsOk());
  EXPECT_EQ((*merged)->position, kBefore + kEntries);
  EXPECT_EQ((*merged)->sets.at(0).launched, 7);
  EXPECT_LE(merge.Free(1000), 1000);
}

// Whatever the order in which what they have launched is compared.
TEST(ResumeMerge, NamesTheRanksThatHaveLaunchedOtherBatches) {
  const auto merged = [](std::vector<int64_t> launched) {
    HeardMessages heard;
    std::vector<MemberReport> reports(launched.size());
    for (size_t rank = 0; rank < reports.size(); ++rank) {
      reports[rank].position = 1;
      if (launched[rank] > 0) reports[rank].launched = {{0, launched[rank]}};
    }
    return std::string(MergeReports(reports, heard).status().message());
  };
  EXPECT_THAT(merged({4, 4, 4}), IsEmpty());
  EXPECT_THAT(merged({4, 4, 5}), HasSubstr("rank 0 is at batch 4 and rank 2 at batch 5"));
  EXPECT_THAT(merged({0, 4, 4}), HasSubstr("rank 0 is at batch 0 and rank 1 at batch 4"));
  EXPECT_THAT(merged({4, 0, 4}), HasSubstr("rank 1 is at batch 0 and rank 2 at batch 4"));
  EXPECT_THAT(merged({4, 4, 0}), HasSubstr("rank 0 is at batch 4 and rank 2 at batch 0"));
}

// Of a plan it counts, too, how many batches each of those would be told.
TEST(ResumeMerge, CountsTheBatchesOfWhatIsToldAgain) {
  HeardMessages heard;
  std::vector<MemberReport> reports(500);
  v1::ResumeReport part;
  v1::CoordinatorMessage& message = *part.add_received();
  message.set_position(1);
  for (int i = 1; i <= 100000; ++i) message.mutable_plan()->add_batches()->set_sequence(i);
  part.add_received_by(0);
  reports[0].position = 1;
  reports[0].launched = {{0, 100000}};
  ASSERT_THAT(reports[0].Add(part, heard), IsOk());
  EXPECT_THAT(MergeReports(reports, heard).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("tells again")));
}

}  // namespace
}  // namespace coordd
