// Who is rung by what a member of a lane says, and that nobody sleeps on.
#include "worker/node/node_lane.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/thread.h"
#include "tests/worker/support/mapped_memories.h"
#include "tests/worker/support/reference.h"
#include "worker/node/node_run.h"

namespace coordd {
namespace {

constexpr LaneId kLane{7};

bool WasRung(const Doorbell& bell) { return bell.rung.load() != 0; }

TEST(NodeLane, RingsOnlyThoseWhoSleep) {
  for (const LaneBell which : {LaneBell::kOfRank, LaneBell::kOfLane}) {
    const MappedMemories memories(3);
    NodeLane first(kLane, memories.all(), 0, which), second(kLane, memories.all(), 1, which),
        third(kLane, memories.all(), 2, which);
    EXPECT_EQ(first.FirstBehind(0), -1);
    EXPECT_EQ(&first.bell() == &memories.board(0).bell(), which == LaneBell::kOfRank);
    second.bell().Listen();
    first.Reach(1);
    EXPECT_TRUE(WasRung(second.bell()));
    EXPECT_FALSE(WasRung(third.bell()));
  }
}

TEST(NodeLane, DoesNotRingItself) {
  const MappedMemories memories(2);
  NodeLane first(kLane, memories.all(), 0), second(kLane, memories.all(), 1);
  first.bell().Listen();
  first.Reach(1);
  EXPECT_FALSE(WasRung(first.bell()));
}

TEST(NodeLane, WhoSleepsAtTheBellOfALaneIsNotRungForAnotherLane) {
  const MappedMemories memories(2);
  NodeLane sleeps(kLane, memories.all(), 0, LaneBell::kOfLane);
  NodeLane other(LaneId{8}, memories.all(), 0, LaneBell::kOfLane);
  NodeLane of_rank(LaneId{9}, memories.all(), 0);
  NodeLane neighbours_other(LaneId{8}, memories.all(), 1, LaneBell::kOfLane);
  NodeLane neighbours_of_rank(LaneId{9}, memories.all(), 1);
  sleeps.bell().Listen();
  EXPECT_EQ(neighbours_other.FirstBehind(0), -1);
  neighbours_other.Reach(1);
  neighbours_of_rank.Reach(1);
  EXPECT_FALSE(WasRung(sleeps.bell()));
}

TEST(NodeLane, RingsWhoWaitsForItsEntry) {
  for (const LaneBell which : {LaneBell::kOfRank, LaneBell::kOfLane}) {
    const MappedMemories memories(2);
    NodeLane first(kLane, memories.all(), 0, which);
    ASSERT_EQ(first.FirstBehind(0), 1);
    first.bell().Listen();
    const NodeLane second(kLane, memories.all(), 1, which);
    EXPECT_TRUE(WasRung(first.bell()));
  }
}

TEST(NodeBoard, RingsTheBellOfTheRankAndThoseOfAllItsLanes) {
  const MappedMemories memories(1);
  NodeBoard board = memories.board(0);
  BoardEntry* const first = board.Claim(LaneId{1});
  BoardEntry* const second = board.Claim(LaneId{2});
  for (Doorbell* bell : {&board.bell(), &first->bell, &second->bell}) bell->Listen();
  board.RingAll();
  for (Doorbell* bell : {&board.bell(), &first->bell, &second->bell}) EXPECT_TRUE(WasRung(*bell));
}

// A member whose thread goes to sleep whenever it has nothing to do.
class SleepyMember {
 public:
  SleepyMember(const MappedMemories& memories, int32_t self)
      : memories_(memories),
        self_(self),
        staging_(memories.all()[Index(self)].subspan(kStagingAt)) {}

  // Allreduces of 8 bytes to 40 KB, in pieces of 1 KiB, on a new lane now and then.
  void Run(int32_t collectives) {
    for (int32_t i = 0; i < collectives; ++i) {
      if (i % kCollectivesOfALane == 0) Begin(i / kCollectivesOfALane);
      const int64_t count = i % 7 == 0 ? 5000 : 1 + i % 100;
      input_.assign(static_cast<size_t>(count), self_ + i);
      output_.assign(input_.size(), 0);
      Allreduce(i);
      if (!wrong_.empty()) return;
      const int64_t members = static_cast<int64_t>(memories_.all().size());
      if (output_.front() != members * (members - 1) / 2 + members * i ||
          output_.back() != output_.front()) {
        wrong_ = absl::StrCat("collective ", i, ": ", output_.front(), ", ", output_.back());
      }
    }
  }

  const std::string& wrong() const { return wrong_; }
  int64_t sleeps() const { return sleeps_; }

 private:
  static constexpr size_t kStagingAt = size_t{80} << 20;
  static constexpr int32_t kCollectivesOfALane = 50;
  static constexpr int64_t kShort = 20'000;
  static constexpr int64_t kNoLimit = 20'000'000'000;  // against hangs only
  static size_t Index(int32_t self) { return static_cast<size_t>(self); }

  void Begin(int32_t number) {
    lane_.emplace(LaneId{number}, memories_.all(), self_,
                  number % 2 == 0 ? LaneBell::kOfLane : LaneBell::kOfRank);
  }

  void Allreduce(int32_t sequence) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllreduce;
    args.dtype = DataType::kInt64;
    args.op = ReduceOp::kSum;
    args.sequence = sequence;
    args.input = {reinterpret_cast<const std::byte*>(input_.data()), 8 * input_.size()};
    args.output = {reinterpret_cast<std::byte*>(output_.data()), 8 * output_.size()};
    constexpr NodeRunOptions kOptions = {.inline_bytes_max = 512,
                                         .staging = {.buffer_bytes = 1024},
                                         .stream_bytes_min = int64_t{1} << 30};
    NodeCollectiveRun run(args, *lane_, staging_, kOptions);
    Doorbell& bell = lane_->bell();
    int sleeps_there = -1;  // it does not listen
    while (wrong_.empty()) {
      const bool moved = run.Advance();
      if (run.finished()) break;
      if (moved) {
        bell.StopListening();
        sleeps_there = -1;
      } else if (sleeps_there < 0) {
        bell.Listen();
        sleeps_there = 0;
      } else if (!bell.Sleep(sleeps_there == 0 ? kShort : kNoLimit) && sleeps_there > 0) {
        wrong_ = absl::StrCat("nobody rang in ", sequence);
      } else {
        ++sleeps_there;
        ++sleeps_;
      }
    }
    bell.StopListening();
    if (!run.status().ok()) wrong_ = std::string(run.status().message());
  }

  const MappedMemories& memories_;
  const int32_t self_;
  const absl::Span<std::byte> staging_;
  std::optional<NodeLane> lane_;
  std::vector<int64_t> input_, output_;
  std::string wrong_;
  int64_t sleeps_ = 0;
};

TEST(NodeLane, KnowsWhoSaysNoFurtherStep) {
  const MappedMemories memories(3);
  NodeLane first(kLane, memories.all(), 0), second(kLane, memories.all(), 1),
      third(kLane, memories.all(), 2);
  EXPECT_EQ(first.FirstBehind(0), -1);
  using Ending = NodeLane::Ending;
  EXPECT_EQ(first.EndingOf(1), Ending::kNone);
  EXPECT_EQ(first.EndingOf(2), Ending::kNone);
  second.GiveUp();
  memories.board(2).Leave();
  EXPECT_EQ(first.EndingOf(1), Ending::kFailed);
  EXPECT_EQ(first.EndingOf(2), Ending::kLeft);
  EXPECT_EQ(second.EndingOf(0), Ending::kNone);
  // The next lane at that place begins anew, where the rank has not left.
  memories.board(1).Free(kLane);
  NodeLane other(LaneId{8}, memories.all(), 0), others_second(LaneId{8}, memories.all(), 1);
  EXPECT_TRUE(other.HasReached(1, 0));
  EXPECT_EQ(other.EndingOf(1), Ending::kNone);
  EXPECT_EQ(other.EndingOf(2), Ending::kLeft);
}

// Of a lane that its members leave one by one, a member's place is nobody else's as long as another
// member may look at it.
TEST(NodeLane, AnEntryIsKeptUntilAllHaveLeft) {
  const MappedMemories memories(2);
  NodeLane first(kLane, memories.all(), 0, LaneBell::kOfLane),
      second(kLane, memories.all(), 1, LaneBell::kOfLane);
  EXPECT_EQ(first.FirstBehind(0), -1);
  EXPECT_EQ(second.FirstBehind(0), -1);
  EXPECT_FALSE(second.Release());
  EXPECT_EQ(first.EndingOf(1), NodeLane::Ending::kLeft);
  NodeLane next(LaneId{8}, memories.all(), 1, LaneBell::kOfLane);
  next.Reach(1);
  EXPECT_FALSE(first.HasReached(1, 1));
  EXPECT_TRUE(first.Release());
  EXPECT_TRUE(second.Release());
  EXPECT_EQ(memories.board(0).Find(kLane), nullptr);
  EXPECT_EQ(memories.board(1).Find(kLane), nullptr);
}

TEST(NodeLane, EveryStepWakesThoseWhoSleep) {
  constexpr int32_t kMembers = 3, kCollectives = 2000;
  const MappedMemories memories(kMembers);
  std::vector<SleepyMember> members;
  for (int32_t m = 0; m < kMembers; ++m) members.emplace_back(memories, m);
  std::vector<std::thread> threads;
  for (SleepyMember& member : members)
    threads.push_back(StartThread("member", [&member] { member.Run(kCollectives); }));
  for (std::thread& thread : threads) thread.join();
  int64_t sleeps = 0;
  for (const SleepyMember& member : members) {
    EXPECT_EQ(member.wrong(), "");
    sleeps += member.sleeps();
  }
  EXPECT_GT(sleeps, 0);
}

}  // namespace
}  // namespace coordd
