#include "server/job/told_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "common/protocol/proto_convert.h"

namespace coordd {
namespace {

v1::LanePosition& AddLane(v1::Heartbeat& heartbeat, int32_t number, const std::string& waiting = "",
                          int seconds = 0) {
  v1::LanePosition& lane = *heartbeat.add_lanes();
  lane.set_lane(number);
  lane.set_oldest_waiting(waiting);
  ToProto(absl::Seconds(seconds), lane.mutable_waiting());
  return lane;
}

TEST(ToldProgress, IsWhatStatusShows) {
  v1::Heartbeat heartbeat;
  heartbeat.set_collectives_completed(7);
  heartbeat.set_bytes_reduced(800);
  AddLane(heartbeat, 3, "grad.3", 2);
  AddLane(heartbeat, 0, "grad.0", 5).set_launched(9);
  AddLane(heartbeat, 4, "grad.4", 4);
  heartbeat.mutable_lanes(1)->set_completed(9);
  ToldProgress progress = ProgressOf(heartbeat, {});
  EXPECT_EQ(progress.collectives_completed, 7);
  EXPECT_EQ(progress.bytes_reduced, 800);
  ASSERT_TRUE(progress.of_all_ranks.has_value());
  EXPECT_EQ(progress.of_all_ranks->launched, 9);
  EXPECT_FALSE(progress.executes);
  ASSERT_TRUE(progress.waiting.has_value());
  EXPECT_EQ(progress.waiting->tensor, "grad.0");
  EXPECT_EQ(progress.waiting->process_set, ProcessSetId{0});
  EXPECT_EQ(progress.waiting->since, absl::Seconds(5));
  heartbeat.mutable_lanes(2)->set_launched(1);
  EXPECT_TRUE(ProgressOf(heartbeat, {}).executes);
}

TEST(ToldProgress, OfNothingIsNothing) {
  const ToldProgress progress = ProgressOf({}, {});
  EXPECT_FALSE(progress.of_all_ranks.has_value());
  EXPECT_FALSE(progress.waiting.has_value());
  EXPECT_FALSE(progress.executes);
}

TEST(ToldProgress, ACallOfACommWaitsLikeATensor) {
  v1::Heartbeat heartbeat;
  heartbeat.set_comm_calls(17);
  AddLane(heartbeat, 0, "grad.0", 5);
  v1::CommWait& wait = *heartbeat.add_comm_waits();
  wait.set_comm("torch");
  wait.set_call("allreduce number 18");
  ToProto(absl::Seconds(4), wait.mutable_waiting());
  ToldProgress progress = ProgressOf(heartbeat, {});
  EXPECT_EQ(progress.waiting->tensor, "grad.0");
  EXPECT_TRUE(progress.executes);
  ToProto(absl::Seconds(6), wait.mutable_waiting());
  progress = ProgressOf(heartbeat, progress);
  EXPECT_EQ(progress.waiting->tensor, "comm torch: allreduce number 18");
  EXPECT_EQ(progress.waiting->since, absl::Seconds(6));
  EXPECT_FALSE(progress.executes);  // none has ended since
}

// A relay brings it once for all ranks of its node.
TEST(SharedWord, IsKeptOnceForAllWhoTellIt) {
  SharedWord<v1::DeviceUse> words;
  v1::DeviceUse use;
  use.set_nccl("2.28.9");
  const auto first = words.Keep(use);
  EXPECT_EQ(words.Keep(use), first);
  use.set_nccl("2.30.7");
  EXPECT_NE(words.Keep(use), first);
  EXPECT_EQ(first->nccl(), "2.28.9");
}

TEST(SharedWord, IsKnownAsLongAsSomebodyHasItAndAmongAFewOthers) {
  SharedWord<v1::DeviceUse> words;
  v1::DeviceUse use;
  const auto tell = [&](int number) {
    use.set_nccl(std::to_string(number));
    return words.Keep(use);
  };
  const auto first = tell(0);
  EXPECT_TRUE(words.IsAlone(first));
  std::vector<std::shared_ptr<const v1::DeviceUse>> kept;
  for (int i = 1; i < static_cast<int>(SharedWord<v1::DeviceUse>::kKnown); ++i)
    kept.push_back(tell(i));
  kept.push_back(tell(0));
  EXPECT_EQ(kept.back(), first) << "others have told something else since";
  EXPECT_FALSE(words.IsAlone(first));
  const std::weak_ptr<const v1::DeviceUse> gone = tell(100);
  EXPECT_TRUE(gone.expired()) << "nobody has it any more";
  EXPECT_FALSE(words.IsAlone(nullptr));
}

}  // namespace
}  // namespace coordd
