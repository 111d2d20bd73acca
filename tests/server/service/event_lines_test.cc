#include "server/service/event_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

Event Departed(int32_t rank, const std::string& host, const std::string& detail,
               v1::DepartureCause cause = v1::DEPARTURE_CAUSE_CONNECTION_LOST) {
  Event event{.kind = Event::Kind::kWorkerDeparted, .job = "train"};
  event.cause = cause;
  event.text = absl::StrCat("rank ", rank, " ", detail);
  event.departed = Event::Departed{.rank = rank, .host = host, .detail = detail};
  return event;
}

constexpr char kLost[] = "was lost: its connection closed without a goodbye";

TEST(SharedDepartures, LeavesOnesThatAreAloneAsTheyAre) {
  EXPECT_THAT(SharedDepartures({}), IsEmpty());
  EXPECT_THAT(SharedDepartures({Departed(1, "node1", kLost)}), IsEmpty());
  EXPECT_THAT(SharedDepartures(
                  {Departed(1, "node1", kLost), Departed(2, "node2", kLost),
                   Departed(3, "node1", "failed: no memory", v1::DEPARTURE_CAUSE_PROGRAM_FAILED)}),
              IsEmpty());
}

TEST(SharedDepartures, TellsTheLossOfANodeOnce) {
  std::vector<Event> events;
  for (int32_t rank = 191; rank >= 128; --rank) events.push_back(Departed(rank, "node3", kLost));
  events.push_back(Departed(7, "node0", kLost));
  std::map<size_t, std::string> shared = SharedDepartures(events);
  ASSERT_EQ(shared.size(), 64u);
  EXPECT_EQ(shared.at(0),
            "lost 64 workers on node3, ranks 128-191: its connection closed without a goodbye");
  for (size_t i = 1; i < 64; ++i) EXPECT_EQ(shared.at(i), "");
}

TEST(SharedDepartures, TellsJobsAndReasonsApart) {
  std::vector<Event> events = {Departed(0, "a", "left", v1::DEPARTURE_CAUSE_LEFT),
                               Departed(1, "a", "left", v1::DEPARTURE_CAUSE_LEFT),
                               Departed(2, "a", kLost), Departed(4, "a", kLost)};
  events.push_back(events[3]);
  events.back().job = "other";
  EXPECT_THAT(SharedDepartures(events),
              ElementsAre(Pair(0, "2 workers on a, ranks 0-1: each left"), Pair(1, ""),
                          Pair(2,
                               "lost 2 workers on a, ranks 2, 4: its connection closed without a "
                               "goodbye"),
                          Pair(3, "")));
}

TEST(SharedDepartures, TakesThoseWhoFellSilentTogetherHoweverLongEachWas) {
  constexpr auto kSilent = v1::DEPARTURE_CAUSE_LEASE_EXPIRED;
  EXPECT_THAT(
      SharedDepartures({Departed(-1, "a", "was lost: it was silent for 10.1 s", kSilent),
                        Departed(-1, "a", "was lost: it was silent for 10.4 s", kSilent)}),
      ElementsAre(Pair(0, "lost 2 workers on a, which had no ranks yet: it was silent for 10.1 s"),
                  Pair(1, "")));
}

// One whose loss ends the generation of a job of thousands of nodes.
TEST(SharedDepartures, TellsOfThoseOfVeryManyHostsOnce) {
  std::vector<Event> events;
  for (int32_t rank = 0; rank < 4096; ++rank)
    events.push_back(Departed(rank, absl::StrCat("node", rank), kLost));
  events.push_back(Departed(4096, "other", "left", v1::DEPARTURE_CAUSE_LEFT));
  std::map<size_t, std::string> shared = SharedDepartures(events);
  ASSERT_EQ(shared.size(), 4096u);
  EXPECT_EQ(shared.at(0),
            "lost 4096 workers on 4096 hosts, ranks 0-4095: its connection closed without a "
            "goodbye");
  for (size_t i = 1; i < 4096; ++i) EXPECT_EQ(shared.at(i), "");
  events.resize(kHostsApart);
  EXPECT_THAT(SharedDepartures(events), IsEmpty()) << "so many are told one by one";
}

class EventLinesTest : public ::testing::Test {
 protected:
  static Event Changed(const std::string& job, const std::string& text = "process set 1 added") {
    return {.kind = Event::Kind::kProcessSetChanged, .job = job, .text = text};
  }
  // The lines of the log that these make.
  std::vector<std::string> Lines(const std::vector<Event>& events, absl::Time now) {
    ::testing::internal::CaptureStderr();
    lines_.Write(
        events, [](const std::string& job) { return job.substr(0, job.find('.')); }, now);
    return absl::StrSplit(::testing::internal::GetCapturedStderr(), '\n', absl::SkipEmpty());
  }

  EventLines lines_;
};

TEST_F(EventLinesTest, OneOwnersFloodIsCutShortAndHidesNothingOfOthers) {
  const absl::Time now = kStart;
  std::vector<Event> flood;
  for (int i = 0; i < 3 * EventLines::kOwnersBurst; ++i)
    flood.push_back(Changed(absl::StrCat("evil.", i)));
  EXPECT_EQ(Lines(flood, now).size(), size_t{EventLines::kOwnersBurst});
  EXPECT_THAT(Lines({Changed("good"), Changed("evil.7")}, now),
              ElementsAre(HasSubstr("job good: process set 1 added")));
  EXPECT_THAT(Lines({Changed("evil.8"), Changed("evil.9")}, now + EventLines::kOwnersEvery),
              ElementsAre(HasSubstr("8193 more of this kind were not written) (of jobs of evil)")));
}

TEST_F(EventLinesTest, WhoHasReachedABoundIsNamedWithHisAddress) {
  Event event = Changed("evil.1", "process set 7 of ranks [0]: no room");
  event.kind = Event::Kind::kProcessSetRefused;
  event.caller = std::make_shared<const Caller>(
      Caller{.identity = {.role = Role::kWorker, .name = "evil"}, .peer = "ipv4:10.0.0.7:4711"});
  event.code = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(Lines({event}, kStart), ElementsAre(testing::Not(HasSubstr("10.0.0.7"))));
  event.code = absl::StatusCode::kResourceExhausted;
  EXPECT_THAT(Lines({event}, kStart),
              ElementsAre(HasSubstr("no room (worker/evil at ipv4:10.0.0.7:4711)")));
}

}  // namespace
}  // namespace coordd
