#include "server/model/heartbeat_pace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iterator>
#include <map>

#include "server/model/server_options.h"

namespace coordd {
namespace {

const absl::Time kStart = absl::FromUnixMillis(1'000'000'007);

TEST(HeartbeatPaceTest, AMemberOfASmallJobReportsWhenItLikes) {
  const ServerOptions options;
  EXPECT_EQ(HeartbeatInterval(options, 1), absl::Seconds(2));
  EXPECT_EQ(HeartbeatInterval(options, 64), absl::Seconds(2));
  EXPECT_EQ(UntilNextHeartbeat(absl::Seconds(2), 64, Rank{63}, kStart), absl::Seconds(2));
}

TEST(HeartbeatPaceTest, TheIntervalGrowsWithTheJobWithinWhatTheLeaseAllows) {
  ServerOptions options;
  EXPECT_EQ(HeartbeatInterval(options, 128), absl::Seconds(2));
  EXPECT_EQ(HeartbeatInterval(options, 384), absl::Seconds(3));
  EXPECT_EQ(HeartbeatInterval(options, 1024), absl::Seconds(4)) << "two fifths of ten seconds";
  EXPECT_EQ(HeartbeatInterval(options, 98'304), absl::Seconds(4));
  options.lease = absl::Seconds(4);
  EXPECT_EQ(HeartbeatInterval(options, 1024), absl::Seconds(2)) << "never shorter than asked for";
  options.lease = absl::Seconds(60);
  EXPECT_EQ(HeartbeatInterval(options, 98'304), absl::Seconds(4)) << "stalls are to be seen";
}

TEST(HeartbeatPaceTest, EachReportsOnceInAnIntervalHoweverItsClockRuns) {
  const ServerOptions options;
  const absl::Duration interval = HeartbeatInterval(options, 1000);
  for (int32_t rank : {0, 63, 64, 500, 999}) {
    absl::Time now = kStart + absl::Milliseconds(rank);
    now += UntilNextHeartbeat(interval, 1000, Rank{rank}, now);
    for (int beat = 0; beat < 20; ++beat) {
      // A report arrives a little before its moment, or a little behind.
      const absl::Duration off = absl::Milliseconds(37) * (beat % 5 - 2);
      const absl::Duration next = UntilNextHeartbeat(interval, 1000, Rank{rank}, now + off);
      EXPECT_EQ(next, interval - off) << "rank " << rank << ", " << beat;
      now += interval;
    }
  }
}

TEST(HeartbeatPaceTest, NobodyIsSilentForHalfALease) {
  const ServerOptions options;
  const absl::Duration interval = HeartbeatInterval(options, 4096);
  for (int32_t rank = 0; rank < 4096; rank += 7) {
    const absl::Duration next = UntilNextHeartbeat(interval, 4096, Rank{rank}, kStart);
    EXPECT_GT(next, interval / 8);
    EXPECT_LE(next, interval * 9 / 8);
    EXPECT_LT(next, options.lease / 2);
  }
}

TEST(HeartbeatPaceTest, NeighboursReportTogetherAndGroupsOneAfterTheOther) {
  std::map<absl::Duration, int32_t> at;
  for (int32_t rank = 0; rank < 1024; ++rank)
    ++at[UntilNextHeartbeat(absl::Seconds(4), 1024, Rank{rank}, kStart)];
  ASSERT_EQ(at.size(), 16u);
  for (auto it = at.begin(); it != at.end(); ++it) {
    EXPECT_EQ(it->second, kHeartbeatGroup);
    if (it == at.begin()) continue;
    EXPECT_EQ(it->first - std::prev(it)->first, absl::Milliseconds(250));
  }
}

}  // namespace
}  // namespace coordd
