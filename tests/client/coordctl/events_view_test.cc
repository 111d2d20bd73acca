#include "client/coordctl/events_view.h"

#include <cstdint>
#include <fstream>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/protocol/proto_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

v1::EventList Two(int64_t epoch = 1) {
  v1::EventList list;
  list.set_epoch(epoch);
  v1::JobEvent* first = list.add_events();
  first->set_number(7);
  first->set_unix_seconds(1795300264.5);
  first->set_kind(v1::EVENT_KIND_ASLEEP);
  first->set_text("coordd was not running for 3s");
  v1::JobEvent* second = list.add_events();
  second->set_number(8);
  second->set_unix_seconds(1795300265);
  second->set_job("train");
  second->set_generation(3);
  second->set_kind(v1::EVENT_KIND_WORKER_DEPARTED);
  second->set_warning(true);
  second->set_text("rank 2 (host node3, pid 4711) was lost: killed by signal 9");
  return list;
}

TEST(EventsText, HasALineForEachWithTimeKindJobAndGeneration) {
  EXPECT_EQ(EventsText(Two(), absl::UTCTimeZone()),
            "2026-11-21 22:31:04           asleep               coordd: coordd was not running for "
            "3s\n"
            "2026-11-21 22:31:05  warning  worker_departed      train, generation 3: rank 2 (host "
            "node3, pid 4711) was lost: killed by signal 9\n");
  v1::JobEvent formed = Two().events(1);
  formed.set_kind(v1::EVENT_KIND_GENERATION_FORMED);
  formed.set_warning(false);
  formed.set_text("generation 3 formed: 4 ranks on 2 nodes");
  EXPECT_EQ(
      EventText(formed, absl::UTCTimeZone()),
      "2026-11-21 22:31:05           generation_formed    train: generation 3 formed: 4 ranks "
      "on 2 nodes");
  formed.set_kind(static_cast<v1::EventKind>(99));  // of a newer coordd
  EXPECT_THAT(EventText(formed, absl::UTCTimeZone()), testing::HasSubstr("  99  "));
  EXPECT_EQ(EventsText(v1::EventList(), absl::UTCTimeZone()), "Nothing has happened yet.\n");
}

// The first cells of the table under "## What has happened".
std::set<std::string> KindsInTheRunbook() {
  std::ifstream in(COORDD_RUNBOOK);
  EXPECT_TRUE(in.is_open());
  std::set<std::string> kinds;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (absl::StartsWith(line, "| kind | it says | what to do |")) inside = true;
    if (inside && line.empty()) break;
    if (!inside || !absl::StartsWith(line, "| `")) continue;
    for (absl::string_view kind :
         absl::StrSplit(line.substr(2, line.find(" |", 2) - 2), absl::ByString(", ")))
      kinds.emplace(kind.substr(1, kind.size() - 2));
  }
  return kinds;
}

TEST(EventsText, EveryKindIsInTheRunbook) {
  std::set<std::string> kinds;
  const google::protobuf::EnumDescriptor& all = *v1::EventKind_descriptor();
  for (int i = 0; i < all.value_count(); ++i)
    if (all.value(i)->number() != 0) kinds.insert(EnumeratorName(*all.value(i)));
  EXPECT_THAT(KindsInTheRunbook(), testing::ContainerEq(kinds));
}

TEST(NextRequest, GoesOnBehindWhatHasCome) {
  v1::GetEventsRequest request;
  request.set_job("train");
  request.set_limit(5);
  const v1::GetEventsRequest next = NextRequest(request, Two(), /*epoch=*/0);
  EXPECT_EQ(next.job(), "train");
  EXPECT_EQ(next.after(), 8);
  EXPECT_EQ(next.limit(), 0);  // whatever comes is wanted
  EXPECT_EQ(NextRequest(next, v1::EventList(), 0).after(), 8);
}

TEST(NextRequest, BeginsAnewWithACoorddThatWasStartedAgain) {
  v1::GetEventsRequest request;
  request.set_after(500);
  EXPECT_EQ(NextRequest(request, Two(/*epoch=*/2), /*epoch=*/1).after(), 0);
  EXPECT_EQ(NextRequest(request, Two(/*epoch=*/2), /*epoch=*/2).after(), 8);
}

}  // namespace
}  // namespace coordd
