#include "client/coordctl/events_view.h"

#include <cstdint>
#include <string>

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
  first->set_text("coordd was not running for 3s");
  v1::JobEvent* second = list.add_events();
  second->set_number(8);
  second->set_unix_seconds(1795300265);
  second->set_job("train");
  second->set_generation(3);
  second->set_warning(true);
  second->set_text("rank 2 (host node3, pid 4711) was lost: killed by signal 9");
  return list;
}

TEST(EventsText, HasALineForEachWithTimeJobAndGeneration) {
  EXPECT_EQ(EventsText(Two(), absl::UTCTimeZone()),
            "2026-11-21 22:31:04           coordd: coordd was not running for 3s\n"
            "2026-11-21 22:31:05  warning  train, generation 3: rank 2 (host node3, pid 4711) was "
            "lost: killed by signal 9\n");
  v1::JobEvent formed = Two().events(1);
  formed.set_warning(false);
  formed.set_text("generation 3 formed: 4 ranks on 2 nodes");
  EXPECT_EQ(EventText(formed, absl::UTCTimeZone()),
            "2026-11-21 22:31:05           train: generation 3 formed: 4 ranks on 2 nodes");
  EXPECT_EQ(EventsText(v1::EventList(), absl::UTCTimeZone()), "Nothing has happened yet.\n");
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
