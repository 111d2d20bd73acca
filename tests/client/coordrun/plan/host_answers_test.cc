#include "client/coordrun/plan/host_answers.h"

#include "client/coordrun/plan/slot_book.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

absl::Time AnswerTime(double seconds) { return kStart + absl::Seconds(seconds); }

std::vector<HostSlots> Slots(int32_t slots) { return {{.host = "h1", .slots = slots}}; }

TEST(HostAnswers, AnAnswerWithEnoughSlotsIsTakenAtOnce) {
  HostAnswers answers(/*least=*/2);
  EXPECT_TRUE(answers.Judge(Slots(2), AnswerTime(0)).take);
  EXPECT_THAT(answers.Judge(Slots(3), AnswerTime(1)).say, IsEmpty());
}

TEST(HostAnswers, TooFewSlotsAreBelievedWhenTheScriptSaysSoForAWhile) {
  HostAnswers answers(2);
  const HostAnswers::Verdict first = answers.Judge(std::vector<HostSlots>(), AnswerTime(0));
  EXPECT_FALSE(first.take);
  EXPECT_THAT(first.say, HasSubstr("names 0 slots, fewer than --min-np 2"));
  EXPECT_THAT(answers.Judge(Slots(1), AnswerTime(9)).say, IsEmpty());
  EXPECT_FALSE(answers.Judge(Slots(1), AnswerTime(9.9)).take);
  EXPECT_TRUE(answers.Judge(Slots(1), AnswerTime(10)).take);
  EXPECT_TRUE(answers.Judge(Slots(1), AnswerTime(11)).take);
}

TEST(HostAnswers, DrainedSlotsAreNoneToGoOnWith) {
  HostAnswers answers(2);
  EXPECT_TRUE(answers.Judge(Slots(3), AnswerTime(0), /*drained=*/1).take);
  const HostAnswers::Verdict few = answers.Judge(Slots(3), AnswerTime(1), /*drained=*/2);
  EXPECT_FALSE(few.take);
  EXPECT_THAT(few.say, HasSubstr("names 3 slots, 2 of them drained, fewer than --min-np 2"));
}

TEST(HostAnswers, AGapIsForgotten) {
  HostAnswers answers(2);
  EXPECT_FALSE(answers.Judge(Slots(0), AnswerTime(0)).take);
  EXPECT_TRUE(answers.Judge(Slots(2), AnswerTime(2)).take);
  EXPECT_FALSE(answers.Judge(Slots(0), AnswerTime(11)).take);
}

TEST(HostAnswers, ARefusedAnswerChangesNothingAndIsToldOnce) {
  HostAnswers answers(2);
  const absl::Status bad = absl::InvalidArgumentError("it printed the line 'n[1-'");
  const HostAnswers::Verdict first = answers.Judge(bad, AnswerTime(0));
  EXPECT_FALSE(first.take);
  EXPECT_EQ(first.say, "it printed the line 'n[1-'; the hosts stay as they are");
  EXPECT_THAT(answers.Judge(bad, AnswerTime(100)).say, IsEmpty());
  // One with the time of day in it.
  EXPECT_THAT(answers.Judge(absl::UnavailableError("10:00:01 busy"), AnswerTime(101)).say,
              HasSubstr("busy"));
  EXPECT_THAT(answers.Judge(absl::UnavailableError("10:00:02 busy"), AnswerTime(102)).say,
              IsEmpty());
  // And again after a good one.
  answers.Judge(Slots(2), AnswerTime(103));
  EXPECT_THAT(answers.Judge(bad, AnswerTime(104)).say, HasSubstr("n[1-"));
}

TEST(ParseDiscovered, TakesAHostALine) {
  const auto hosts =
      ParseDiscovered("# two racks\n a:2 \n\nb # alone\n[::1]:3\nn[1-2]:4\nc:0\na:9\n", 8);
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_THAT(*hosts, ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 8}, HostSlots{"::1", 3},
                                  HostSlots{"n1", 4}, HostSlots{"n2", 4}));
}

TEST(ParseDiscovered, RefusesWhatIsNoHost) {
  for (const std::string& line :
       {std::string("n[1-"), std::string("WARNING: the queue is slow"), std::string("a:2,b:2"),
        std::string("a b"), std::string("-oProxyCommand=evil"), std::string("-Fevil:1"),
        std::string("a:x"), std::string("a:5000"), std::string(10000, 'x'), std::string("h\033[1m"),
        std::string("me@host"), std::string("a:2 slots")}) {
    const auto hosts = ParseDiscovered("a:1\n" + line + "\n", 1);
    EXPECT_EQ(hosts.status().code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(hosts.status().message(), HasSubstr("expected")) << line;
    EXPECT_LT(hosts.status().message().size(), 600U) << line;
  }
}

}  // namespace
}  // namespace coordd
