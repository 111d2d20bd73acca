// Ranks that call a registration unequally often: who is named, and how they come in step again.
#include "worker/gpu/plane/memory_meetings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/store_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/closed_store.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr ProcessSetId kAllRanks{0};

class MemoryMeetingsTest : public ::testing::Test {
 protected:
  explicit MemoryMeetingsTest(int32_t size = 3) : ranks_(static_cast<size_t>(size)) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
    for (int32_t rank : ranks_)
      of_rank_.push_back(std::make_unique<MemoryMeetings>(store_, Clock::Real(), rank));
  }

  MemoryMeetings& At(size_t rank) { return *of_rank_[rank]; }
  // Waits for nothing that is not complete.
  absl::StatusOr<int64_t> Meet(size_t rank) {
    return At(rank).Meet(kAllRanks, ranks_, absl::InfinitePast(),
                         [&](std::string name) { return Submit(name); });
  }
  // As negotiation does: complete when all have submitted it.
  absl::StatusOr<std::shared_ptr<Work>> Submit(const std::string& name) {
    TensorSpec spec;
    spec.name = name;
    auto work = std::make_shared<Work>(SharedSpec(std::move(spec)), Clock::Real());
    std::vector<std::shared_ptr<Work>>& works = submitted_[name];
    works.push_back(work);
    if (works.size() == ranks_.size())
      for (const auto& one : std::exchange(works, {})) one->Complete(absl::OkStatus(), {});
    return work;
  }
  void FailAll(const std::string& name) {
    for (const auto& one : std::exchange(submitted_[name], {}))
      one->Complete(absl::DeadlineExceededError("nobody has come"), {});
  }
  // The one who completes a meeting goes on at once; the others see it when they call again.
  void ExpectLate(size_t rank, const std::string& whom) {
    EXPECT_THAT(Meet(rank), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr(whom)));
  }

  InMemoryStore store_;
  std::vector<int32_t> ranks_;
  std::vector<std::unique_ptr<MemoryMeetings>> of_rank_;
  std::map<std::string, std::vector<std::shared_ptr<Work>>> submitted_;
};

TEST_F(MemoryMeetingsTest, WhoHasNotComeIsNamedAndTheNextCallOfAllIsInStep) {
  const std::string which = " not come to this registration of memory (number 1 in process set 0)";
  ExpectLate(0, "ranks 1, 2 have" + which);
  ExpectLate(1, "rank 2 has" + which);
  ExpectLate(0, "rank 2 has" + which);  // it waits for the same
  // Rank 2 has left that call out, and comes to the next one first.
  EXPECT_THAT(Meet(2), IsOkAndHolds(0));
  EXPECT_THAT(Meet(0), IsOkAndHolds(0));
  EXPECT_THAT(Meet(1), IsOkAndHolds(0));
  ExpectLate(2, "ranks 0, 1 have not come to this registration of memory (number 2");
}

TEST_F(MemoryMeetingsTest, WhereTheLastOneHasGivenUpTheOthersMeetAnew) {
  ExpectLate(0, "ranks 1, 2");
  ExpectLate(1, "rank 2");
  EXPECT_THAT(Meet(2), IsOkAndHolds(0));
  EXPECT_THAT(At(2).TooLong(kAllRanks, ranks_, 0),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("ranks 0, 1 have been at this registration of memory (number 1 in "
                                 "process set 0) and given up: all")));
  At(2).GiveUp(kAllRanks, 0);
  ExpectLate(0, "number 2");
  ExpectLate(1, "rank 2 has not come to this registration of memory (number 2");
  EXPECT_THAT(Meet(2), IsOkAndHolds(1));
  EXPECT_THAT(Meet(1), IsOkAndHolds(1));
  EXPECT_THAT(Meet(0), IsOkAndHolds(1));
  EXPECT_THAT(At(0).TooLong(kAllRanks, ranks_, 1),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("all ranks have come"), HasSubstr("number 2"),
                             HasSubstr("the device is not through"))));
}

TEST_F(MemoryMeetingsTest, WhatCoorddHasEndedIsSubmittedAgainUnderItsNumber) {
  ExpectLate(0, "ranks 1, 2");
  ExpectLate(1, "rank 2");
  FailAll("coordd.meeting/0/0");  // as its --stall-abort does
  ExpectLate(0, "rank 2");
  EXPECT_THAT(submitted_["coordd.meeting/0/0"], testing::SizeIs(1));
  ExpectLate(1, "rank 2");
  EXPECT_THAT(Meet(2), IsOkAndHolds(0));
  EXPECT_THAT(Meet(0), IsOkAndHolds(0));
}

TEST_F(MemoryMeetingsTest, OneAloneMeetsNobody) {
  const std::vector<int32_t> alone = {1};
  for (int64_t number = 0; number < 3; ++number) {
    EXPECT_THAT(At(1).Meet(kAllRanks, alone, absl::InfinitePast(),
                           [](std::string) -> absl::StatusOr<std::shared_ptr<Work>> {
                             return absl::InternalError("nothing is to be submitted");
                           }),
                IsOkAndHolds(number));
  }
}

TEST_F(MemoryMeetingsTest, TheEndOfTheGenerationIsNoMistakeOfTheProgram) {
  ClosedStore closed;
  MemoryMeetings meetings(closed, Clock::Real(), 0);
  EXPECT_THAT(meetings.Meet(kAllRanks, ranks_, absl::InfinitePast(),
                            [&](std::string name) { return Submit(name); }),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("generation 1 is over")));
  // Without a store that tells, nobody is named.
  EXPECT_THAT(meetings.TooLong(kAllRanks, ranks_, 0),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("not all ranks of process set 0 have come"),
                             Not(HasSubstr("rank 1")))));
}

TEST_F(MemoryMeetingsTest, WhoHasGivenUpAndLeavesTheNextOneOutIsNamed) {
  ExpectLate(0, "ranks 1, 2 have not come");
  ExpectLate(1,
             "rank 2 has not come to this registration of memory (number 1 in process set 0), "
             "rank 0 has been there and given up: all ranks");
  EXPECT_THAT(Meet(2), IsOkAndHolds(0));
  EXPECT_THAT(Meet(1), IsOkAndHolds(0));
  EXPECT_THAT(At(1).TooLong(kAllRanks, ranks_, 0),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 0 has been at this registration of memory (number 1"),
                             HasSubstr("and given up"), Not(HasSubstr("rank 2")))));
}

// Has no words while coordd is away.
class AwayStore final : public Store {
 public:
  bool is_away = false;

  absl::Status Set(absl::string_view key, std::string value, absl::Time deadline) override {
    if (is_away) return absl::UnavailableError("coordd is away");
    return store_.Set(key, std::move(value), deadline);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Time deadline) override {
    return store_.Get(key, deadline);
  }
  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t delta, absl::Time deadline) override {
    return store_.Add(key, delta, deadline);
  }
  absl::Status DeletePrefix(absl::string_view prefix, absl::Time deadline) override {
    return store_.DeletePrefix(prefix, deadline);
  }
  absl::StatusOr<std::vector<std::optional<std::string>>> Look(const std::vector<std::string>& keys,
                                                               bool values,
                                                               absl::Time deadline) override {
    return store_.Look(keys, values, deadline);
  }

 private:
  InMemoryStore store_;
};

TEST_F(MemoryMeetingsTest, WhatCoorddHasNotHeardIsToldBeforeTheNextMeeting) {
  AwayStore store;
  ranks_ = {0, 1};
  MemoryMeetings first(store, Clock::Real(), 0), second(store, Clock::Real(), 1);
  const auto meet = [&](MemoryMeetings& meetings) {
    return meetings.Meet(kAllRanks, ranks_, absl::InfinitePast(),
                         [&](std::string name) { return Submit(name); });
  };
  EXPECT_FALSE(meet(first).ok());
  EXPECT_THAT(meet(second), IsOkAndHolds(0));
  store.is_away = true;
  second.GiveUp(kAllRanks, 0);
  EXPECT_THAT(meet(second), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("away")));
  store.is_away = false;
  EXPECT_FALSE(meet(second).ok());
  EXPECT_THAT(meet(first), IsOkAndHolds(1));
  EXPECT_THAT(meet(second), IsOkAndHolds(1));
}

class ManyMeetingsTest : public MemoryMeetingsTest {
 protected:
  ManyMeetingsTest() : MemoryMeetingsTest(1100) {}
};

TEST_F(ManyMeetingsTest, OfManySomeAreNamed) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (rank % 50 != 5) {
      EXPECT_FALSE(Meet(rank).ok());
    }
  }
  ExpectLate(0,
             "ranks 5, 55, 105, 155, 205, 255, 305, 355, 405, 455, 505, 555, 605, 655, 705, 755 "
             "and 6 more "
             "have not come");
}

}  // namespace
}  // namespace coordd
