#include "server/model/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

using testing::HasSubstr;

Event EventOf(Event::Kind kind, const std::string& text) {
  Event event{.kind = kind};
  event.job = "train";
  event.text = text;
  return event;
}

TEST(EventLog, KeepsWhatHasHappenedThroughAFloodOfRefusedJoins) {
  EventLog log(Epoch{1});
  log.Add(EventOf(Event::Kind::kWorkerDeparted, "was evicted"), "", kStart);
  absl::Time now = kStart;
  for (int i = 0; i < 100'000; ++i) {
    now += absl::Milliseconds(10);
    log.Add(EventOf(Event::Kind::kJoinRefused, "wrong token"), "", now);
  }
  const v1::EventList list = log.Read({});
  EXPECT_EQ(list.forgotten(), 0);
  EXPECT_EQ(list.events(0).text(), "was evicted");
  EXPECT_LT(list.events_size(), 100);
  EXPECT_GT(list.events_size(), LogLimit::kBurst) << "it is seen that it goes on";
  EXPECT_THAT(list.events(list.events_size() - 1).text(), HasSubstr("more of this kind"));
  for (int i = 0; i < list.events_size(); ++i) EXPECT_EQ(list.events(i).number(), i + 1);
}

TEST(EventLog, KeepsAllOfWhatOnlyMembersCause) {
  EventLog log(Epoch{1});
  for (int i = 0; i < 1000; ++i) log.Add(EventOf(Event::Kind::kWorkerJoined, "joined"), "", kStart);
  EXPECT_EQ(log.Read({}).events_size(), 1000);
}

TEST(EventLog, AJobThatIsLoudForgetsItsOwn) {
  EventLog log(Epoch{1});
  log.Add(EventOf(Event::Kind::kWorkerDeparted, "was evicted"), "", kStart);
  Event loud = EventOf(Event::Kind::kProcessSetChanged, "set 1 was added");
  loud.job = "loud";
  for (size_t i = 0; i < 2 * kEventsKept; ++i) log.Add(loud, "", kStart);
  const v1::EventList list = log.Read({});
  EXPECT_EQ(list.events_size(), static_cast<int>(kEventsKept));
  EXPECT_EQ(list.events(0).text(), "was evicted");
  EXPECT_EQ(list.events(list.events_size() - 1).number(), 2 * kEventsKept + 1) << "the newest";
}

TEST(EventLog, AnOwnerIsNotQuietByBeingManyJobs) {
  EventLog log(Epoch{1});
  log.Add(EventOf(Event::Kind::kGenerationFormed, "generation 1"), "launcher/bob", kStart);
  log.Add(EventOf(Event::Kind::kWorkerDeparted, "was evicted"), "launcher/bob", kStart);
  for (size_t i = 0; i < 2 * kEventsKept; ++i) {
    Event event = EventOf(Event::Kind::kJobCreated, "began");
    event.job = absl::StrCat("job", i);
    log.Add(event, "launcher/alice", kStart);
  }
  const v1::EventList list = log.Read({});
  EXPECT_EQ(list.events_size(), static_cast<int>(kEventsKept));
  EXPECT_EQ(list.events(0).text(), "generation 1");
  EXPECT_EQ(list.events(1).text(), "was evicted");
  EXPECT_EQ(list.events(2).text(), "began");
}

TEST(EventLog, TwoWhoAreLoudLeaveAThirdItsOwn) {
  EventLog log(Epoch{1});
  for (size_t i = 0; i < kEventsKept / 4; ++i)
    log.Add(EventOf(Event::Kind::kWorkerJoined, "joined"), "launcher/carol", kStart);
  Event loud = EventOf(Event::Kind::kJobCreated, "began");
  for (size_t i = 0; i < 2 * kEventsKept; ++i) {
    loud.job = absl::StrCat("job", i);
    log.Add(loud, i % 2 == 0 ? "launcher/alice" : "launcher/bob", kStart);
  }
  v1::GetEventsRequest of_train;
  of_train.set_job("train");
  EXPECT_EQ(log.Read(of_train).events_size(), static_cast<int>(kEventsKept / 4));
}

TEST(EventLog, OfSeveralThatAreNotTheOldestGoes) {
  EventLog log(Epoch{1});
  for (size_t i = 0; i < kEventsKept + 3; ++i) {
    Event event = EventOf(Event::Kind::kWorkerJoined, "joined");
    event.job = i % 3 == 0 ? "a" : i % 3 == 1 ? "b" : "c";
    log.Add(event, "", kStart);
  }
  const v1::EventList list = log.Read({});
  EXPECT_EQ(list.events_size(), static_cast<int>(kEventsKept));
  EXPECT_EQ(list.forgotten(), 3);
}

}  // namespace
}  // namespace coordd
