#include "worker/runtime/comm_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1000);

WaitingCall Waiting(const std::string& comm, const std::string& call, int seconds) {
  WaitingCall waiting;
  waiting.comm = comm;
  waiting.call = call;
  waiting.since = kNow - absl::Seconds(seconds);
  return waiting;
}

v1::Heartbeat Told(std::vector<WaitingCall> waiting) {
  v1::Heartbeat heartbeat;
  TellOfWaits(std::move(waiting), kNow, heartbeat);
  return heartbeat;
}

std::vector<std::string> CallsOf(const v1::Heartbeat& heartbeat) {
  std::vector<std::string> calls;
  for (const v1::CommWait& wait : heartbeat.comm_waits()) calls.push_back(wait.call());
  return calls;
}

TEST(CommCalls, CountsWhatHasEndedAlsoOfCommsThatAreGone) {
  const auto all = std::make_shared<CommCalls>();
  CommCalls::Account kept(all);
  kept.Count(4);
  {
    CommCalls::Account gone(all);
    gone.Count(10);
    gone.Count(10);
  }
  all->CountMessage(100);
  EXPECT_EQ(all->totals().calls, 4);
  EXPECT_EQ(all->totals().bytes, 124);
}

TEST(CommCalls, KnowsWhatWaitsUntilItGoesOn) {
  const auto all = std::make_shared<CommCalls>();
  CommCalls::Account one(all), other(all);
  EXPECT_THAT(all->Waiting(), IsEmpty());
  one.Waits(Waiting("torch", "barrier number 1", 5));
  one.Waits(Waiting("torch", "barrier number 2", 4));
  ASSERT_EQ(all->Waiting().size(), 1u);
  EXPECT_EQ(all->Waiting()[0].call, "barrier number 2");
  other.GoesOn();
  EXPECT_EQ(all->Waiting().size(), 1u);
  one.GoesOn();
  EXPECT_THAT(all->Waiting(), IsEmpty());
}

TEST(CommCalls, TellsOfTheOldestOfEachCommThatHasWaitedASecond) {
  std::vector<WaitingCall> waiting = {
      Waiting("a", "send of tag 0 to rank 1", 3), Waiting("b", "barrier number 1", 9),
      Waiting("a", "send of tag 7 to rank 2", 5), Waiting("c", "barrier number 4", 0)};
  EXPECT_THAT(CallsOf(Told(waiting)), ElementsAre("barrier number 1", "send of tag 7 to rank 2"));
  for (int i = 0; i < 10; ++i) waiting.push_back(Waiting(absl::StrCat("d", i), "barrier", 20));
  EXPECT_EQ(Told(waiting).comm_waits_size(), kMaxCommWaits);
}

// Else coordd would refuse a heartbeat for what a program calls its comms.
TEST(CommCalls, KeepsToTheBoundsOfTheProtocol) {
  WaitingCall call = Waiting(std::string(300, 'x') + "\n\x1b[2J", "barrier\nnumber 1", 2);
  for (int32_t rank = 0; rank < 1000; ++rank) call.missing.push_back(rank);
  call.needs_all_of = ProcessSetId{3};
  const v1::Heartbeat told = Told({call});
  ASSERT_EQ(told.comm_waits_size(), 1);
  EXPECT_LE(told.comm_waits(0).comm().size(), static_cast<size_t>(kMaxCommWaitBytes));
  EXPECT_EQ(told.comm_waits(0).call().find('\n'), std::string::npos);
  EXPECT_EQ(told.comm_waits(0).missing_ranks_size(), kMaxCommWaitRanks);
  EXPECT_EQ(told.comm_waits(0).process_set(), 3);
  EXPECT_EQ(told.comm_waits(0).waiting().seconds(), 2);
}

}  // namespace
}  // namespace coordd
