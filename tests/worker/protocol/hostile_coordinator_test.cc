// Whatever a broken or hostile coordd says, a worker ends its generation with an error that says
// what is wrong; its program is never aborted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/protocol/protocol_bounds.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/state_member.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TensorSpec Join() {
  TensorSpec spec;
  spec.name = kJoinName;
  spec.kind = CollectiveKind::kJoin;
  spec.dtype = DataType::kUint8;
  return spec;
}
TensorSpec Broadcast(const std::string& name, int32_t root, int32_t set = 0) {
  TensorSpec spec = Gradient(name);
  spec.kind = CollectiveKind::kBroadcast;
  spec.op = ReduceOp::kNone;
  spec.root_rank = root;
  spec.process_set = ProcessSetId{set};
  return spec;
}

class HostileMember : public Member {
 public:
  using Member::Member;
  // Each tensor is a batch.
  void Schedule(int64_t id, int32_t lane, const std::vector<TensorSpec>& specs, int32_t set = 0) {
    v1::CoordinatorMessage message = Message();
    v1::Schedule& schedule = *message.mutable_schedule();
    schedule.set_id(id);
    schedule.set_lane(lane);
    schedule.set_process_set(set);
    for (const TensorSpec& spec : specs) ToProto(spec, schedule.add_batches()->add_tensors());
    Say(std::move(message));
  }
  void Schedule(int64_t id, const std::vector<TensorSpec>& specs, int32_t set = 0) {
    Schedule(id, kFirstScheduleLane + static_cast<int32_t>(id) - 1, specs, set);
  }
  void Freeze(int64_t id) {
    v1::CoordinatorMessage message = Message();
    message.mutable_freeze()->set_id(id);
    Say(std::move(message));
  }
  void Cut(int64_t id, int64_t position) {
    v1::CoordinatorMessage message = Message();
    message.mutable_cut()->set_id(id);
    message.mutable_cut()->set_position(position);
    Say(std::move(message));
  }
  bool IsExecuting(LaneId lane, int64_t sequence) const {
    for (const LaunchBatch& launch : All<LaunchBatch>())
      if (launch.lane == lane && launch.sequence == sequence) return true;
    return false;
  }
  absl::Status end() { return state().status(); }
};

TEST(HostileCoordinatorTest, TwoSchedulesOfOneNameEndTheGeneration) {
  HostileMember member;
  member.Schedule(1, {Gradient("a"), Gradient("b")});
  member.Schedule(2, {Gradient("c"), Gradient("b")});
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kInternal,
                                     HasSubstr("schedule 2 with tensor b of schedule 1")));
}

TEST(HostileCoordinatorTest, ASecondScheduleOfTheNamesThatTheFirstHoldsEndsTheGeneration) {
  HostileMember member;
  member.Schedule(1, {Gradient("a"), Gradient("b")});
  member.Submit({Gradient("b")});
  member.Schedule(2, {Gradient("b")});
  EXPECT_THAT(member.failure(1), StatusIs(absl::StatusCode::kInternal, HasSubstr("schedule 2")));
}

TEST(HostileCoordinatorTest, AScheduleOnTheLaneOfOneThatStillExecutesEndsTheGeneration) {
  HostileMember member;
  member.Schedule(1, {Gradient("a")});
  member.Submit({Gradient("a")});
  member.Freeze(1);
  member.Cut(1, 1);
  ASSERT_TRUE(member.IsExecuting(LaneId{kFirstScheduleLane}, 1));
  member.Submit({Gradient("a")});
  member.Schedule(2, kFirstScheduleLane, {Gradient("a")});
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kInternal,
                                     HasSubstr("schedule 2 of process set 0 on lane 524288")));
}

TEST(HostileCoordinatorTest, ASecondScheduleOfOneNumberEndsTheGeneration) {
  HostileMember member;
  member.Schedule(1, {Gradient("a")});
  member.Submit({Gradient("a")});
  member.Freeze(1);
  member.Cut(1, 1);
  member.Schedule(1, {Gradient("a")});
  EXPECT_THAT(member.end(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("expected a number from 2")));
}

TEST(HostileCoordinatorTest, AProcessSetOnTheLaneOfAScheduleEndsTheGeneration) {
  HostileMember member;
  member.Change(1, kFirstScheduleLane, {0, 1});
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kInternal,
                                     HasSubstr("process set 524288 of ranks [0, 1]")));
}

TEST(HostileCoordinatorTest, AProcessSetWithTheNumberOfOneThatHasEndedEndsTheGeneration) {
  HostileMember member;
  member.Change(1, 4, {0, 1});
  member.Change(2, 4, {});
  ASSERT_THAT(member.end(), IsOk());
  member.Change(3, 4, {0, 2});
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kInternal,
                                     HasSubstr("expected a number that was not used")));
}

TEST(HostileCoordinatorTest, PairsMayComeInAnotherOrderThanTheirNumbers) {
  HostileMember member;
  member.Change(0, 6, {0, 1});
  member.Change(0, 4, {0, 2});
  member.Change(1, 5, {0, 1, 2});
  EXPECT_THAT(member.end(), IsOk());
}

TEST(HostileCoordinatorTest, TheEndOfAProcessSetWithAScheduleEndsTheGeneration) {
  HostileMember member;
  member.Change(1, 1, {0, 1});
  member.Schedule(1, {Broadcast("a", 0, 1)}, 1);
  member.Change(2, 1, {});
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kInternal, HasSubstr("had not cut")));
}

// The program has removed the set before it has come to the cut, and joins.
TEST(HostileCoordinatorTest, NothingOfACutScheduleIsLaunchedBehindTheEndOfItsSet) {
  HostileMember member;
  member.Change(1, 1, {0, 1});
  member.Schedule(1, {Broadcast("a", 0, 1)}, 1);
  member.Freeze(1);
  member.Cut(1, 1);
  member.Change(2, 1, {});
  member.Submit({Join()});
  EXPECT_THAT(member.All<LaunchBatch>(), IsEmpty());
  EXPECT_THAT(member.end(), IsOk());
}

TEST(HostileCoordinatorTest, ARootOutsideOfTheProcessSetEndsTheGeneration) {
  HostileMember member;
  member.Change(1, 1, {0, 1});
  member.Schedule(1, {Broadcast("a", 2, 1)}, 1);
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kInternal, HasSubstr("root of a")));

  HostileMember joined;
  joined.Change(1, 1, {0, 1});
  joined.Submit({Join()});
  joined.PlanIn(1, 1, {"a"}, {Broadcast("a", 2, 1)});
  EXPECT_THAT(joined.end(), StatusIs(absl::StatusCode::kInternal, HasSubstr("root of a, rank 2")));
}

TEST(HostileCoordinatorTest, AResultThatIsNotHereEndsWaitingForTheNextGeneration) {
  HostileMember member(kStart, Member::Options(OnFailure::kContinue));
  member.Submit({Gradient("a")});
  member.Plan({"a"});
  member.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "", /*in_flight=*/true, /*reforms=*/true);
  member.Done(1, absl::AbortedError("aborted"));
  v1::CoordinatorMessage message = member.Message();
  message.set_generation(2);
  v1::Membership& membership = *message.mutable_membership();
  membership.set_size(2);
  membership.add_nodes()->set_nodes(1);
  membership.mutable_nodes(0)->set_ranks_per_node(2);
  membership.add_repairs()->set_completed(1);
  member.Say(std::move(message));
  EXPECT_THAT(member.end(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("batch 1 of lane 0 as complete")));
}

// What is wrong in it is in join_message_test.
TEST(HostileCoordinatorTest, RacksThatDoNotFitTheNodesEndWaitingForTheNextGeneration) {
  HostileMember member(kStart, Member::Options(OnFailure::kContinue));
  member.Abort(v1::DEPARTURE_CAUSE_CONNECTION_LOST, "", /*in_flight=*/true, /*reforms=*/true);
  v1::CoordinatorMessage message = member.Message();
  message.set_generation(2);
  v1::Membership& membership = *message.mutable_membership();
  membership.set_size(2);
  membership.add_nodes()->set_nodes(2);
  membership.mutable_nodes(0)->set_ranks_per_node(1);
  v1::DomainRun& racks = *membership.add_topology()->add_runs();
  racks.set_domains(1 << 30);
  racks.set_nodes_per_domain(1 << 30);
  member.Say(std::move(message));
  EXPECT_THAT(member.end(), StatusIs(absl::StatusCode::kInternal,
                                     HasSubstr("topology level 0 has more than the 2 nodes")));
}

// --- at random -----------------------------------------------------------------------------------

// A member to whom coordd says what fits, mostly, and what does not, now and then. What it launches
// ends after a while.
class RandomCoordinator {
 public:
  explicit RandomCoordinator(uint64_t seed)
      : random_(seed),
        member_(kStart,
                Member::LastingOptions(seed % 2 == 0 ? OnFailure::kEnd : OnFailure::kContinue)) {}

  void Step() {
    switch (Below(14)) {
      case 0:
        Plan();
        break;
      case 1:
        ChangeSet();
        break;
      case 2:
        Schedule();
        break;
      case 3:
        if (Odd() || frozen_ < schedules_) member_.Freeze(frozen_ = Id());
        break;
      case 4:
        Cut();
        break;
      case 5:
        if (Odd()) Other();
        break;
      case 6:
        if (Odd()) member_.Submit({Join()});
        break;
      case 7:
      case 8:
        Complete();
        break;
      case 9:
        member_.Advance(absl::Milliseconds(static_cast<int64_t>(Below(300))));
        break;
      default:
        member_.Submit({Spec(Set())});
    }
    Check();
  }
  bool alive() { return member_.state().status().ok(); }
  int64_t launched() const { return static_cast<int64_t>(launched_.size()); }
  int64_t scheduled() const {
    return std::count_if(launched_.begin(), launched_.end(),
                         [](const auto& key) { return ToInt(key.first) >= kFirstScheduleLane; });
  }

 private:
  uint64_t Below(uint64_t bound) { return random_.Next() % bound; }
  bool Odd() { return Below(15) == 0; }
  int64_t Id() { return Odd() ? static_cast<int64_t>(Below(4)) : std::max<int64_t>(schedules_, 1); }
  int32_t Set() {
    if (Odd()) return kFirstScheduleLane + static_cast<int32_t>(Below(3));
    if (Below(3) > 0 || sets_.empty()) return 0;
    return *sets_.begin();
  }
  std::vector<int32_t> Ranks() {
    return Below(2) == 0 ? std::vector<int32_t>{0, 1} : std::vector<int32_t>{0, 1, 2};
  }
  TensorSpec Spec(int32_t set) {
    TensorSpec spec = Gradient(std::string(1, static_cast<char>('a' + Below(6))));
    if (Below(4) == 0) spec = Broadcast(spec.name, Odd() ? 2 : static_cast<int32_t>(Below(2)));
    spec.process_set = ProcessSetId{set};
    return spec;
  }
  void ChangeSet() {
    const bool ends = Below(3) == 0 && !sets_.empty();
    const int32_t last = numbers_.empty() ? 0 : *numbers_.rbegin();
    const int32_t set = ends ? *sets_.begin() : Odd() ? Set() : last + 1;
    member_.Change(static_cast<int64_t>(Below(3)), set, ends ? std::vector<int32_t>{} : Ranks(),
                   ++position_);
  }
  void Schedule() {
    if (!Odd() && cut_ < schedules_) return;
    const int32_t set = Set();
    const int64_t id = Odd() ? Id() : ++schedules_;
    const int32_t lane = kFirstScheduleLane + static_cast<int32_t>(Odd() ? Below(4) : id - 1);
    TensorSpec first = Spec(set), second = Spec(set);
    if (!Odd()) second.name = first.name + first.name;
    member_.Schedule(id, lane, {first, second}, set);
    for (const TensorSpec& spec : {first, second, first, second}) member_.Submit({spec});
  }
  void Cut() {
    if (!Odd() && (frozen_ < schedules_ || cut_ == schedules_)) return;
    cut_ = Id();
    member_.Cut(cut_, static_cast<int64_t>(Odd() ? Below(6) : 4 + Below(2)));
  }
  void Plan() {
    if (reported_.empty()) return;
    const TensorSpec spec = Odd() ? Spec(Set()) : reported_.front();
    reported_.pop_front();
    const int32_t set = ToInt(spec.process_set);
    const int64_t sequence = ++planned_[set];
    member_.PlanIn(set, Odd() ? static_cast<int64_t>(Below(5)) : sequence, {spec.name},
                   Below(2) == 0 ? std::vector<TensorSpec>{} : std::vector<TensorSpec>{spec});
  }
  void Other() {
    v1::CoordinatorMessage message = member_.Message();
    message.set_position(Below(3) == 0 ? 1 : ++position_);
    switch (Below(5)) {
      case 0:
        message.mutable_abort()->set_reforms(Below(2) == 0);
        message.mutable_abort()->set_in_flight(Below(2) == 0);
        break;
      case 1:
        message.mutable_resumed()->set_slots(static_cast<int64_t>(Below(3)) - 1);
        break;
      case 2:
        message.mutable_trace()->set_action(static_cast<v1::TraceAction>(Below(4)));
        message.mutable_trace()->set_lane(kFirstScheduleLane);
        message.mutable_trace()->set_until_cycle(static_cast<int64_t>(Below(3)));
        break;
      case 3:
        message.mutable_lease_ack()->set_echoed_sent_ns(static_cast<int64_t>(random_.Next()));
        break;
      default:
        message.mutable_process_sets()->add_sets();
    }
    member_.Say(std::move(message));
  }
  void Complete() {
    if (executing_.empty()) return;
    auto done = executing_.begin();
    std::advance(done, Below(executing_.size()));
    BatchDone event;
    std::tie(event.lane, event.sequence) = *done;
    if (Odd()) event.status = absl::UnavailableError("a peer is gone");
    executing_.erase(done);
    member_.Turn(std::move(event));
  }
  // What the data plane counts on.
  void Check() {
    for (const WorkerEffect& effect : member_.effects()) {
      if (const auto* set = std::get_if<DefineProcessSet>(&effect)) {
        EXPECT_TRUE(numbers_.insert(ToInt(set->process_set)).second);
        sets_.insert(ToInt(set->process_set));
      } else if (const auto* end = std::get_if<EndProcessSet>(&effect)) {
        sets_.erase(ToInt(end->process_set));
      } else if (const auto* lane = std::get_if<EndLane>(&effect)) {
        EXPECT_TRUE(ended_.insert(lane->lane).second);
      } else if (const auto* launch = std::get_if<LaunchBatch>(&effect)) {
        const int32_t of = ToInt(launch->process_set);
        EXPECT_TRUE(of == 0 || sets_.contains(of)) << of;
        EXPECT_FALSE(ended_.contains(launch->lane));
        EXPECT_TRUE(launched_.emplace(launch->lane, launch->sequence).second);
        executing_.emplace(launch->lane, launch->sequence);
      } else if (const auto* send = std::get_if<SendMessage>(&effect)) {
        for (const v1::TensorSpec& spec : send->message.tensors_ready().tensors())
          reported_.push_back(*FromProto(spec));
      }
    }
    member_.Clear();
  }

  Random random_;
  HostileMember member_;
  int64_t position_ = 0;
  std::map<int32_t, int64_t> planned_;
  int64_t schedules_ = 0, frozen_ = 0, cut_ = 0;  // the last ones
  std::deque<TensorSpec> reported_;
  std::set<int32_t> numbers_, sets_;
  std::set<LaneId> ended_;
  std::set<std::pair<LaneId, int64_t>> launched_, executing_;
};

TEST(HostileCoordinatorTest, NoOrderOfItsMessagesAbortsTheProgram) {
  int64_t launched = 0, scheduled = 0, ended = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomCoordinator coordinator(seed);
    for (int step = 0; step < 100; ++step) coordinator.Step();
    launched += coordinator.launched();
    scheduled += coordinator.scheduled();
    ended += coordinator.alive() ? 0 : 1;
    if (::testing::Test::HasFailure()) return;
  }
  // It has come to what it is about.
  EXPECT_GT(launched, 3000);
  EXPECT_GT(scheduled, 1000);
  EXPECT_GT(ended, 500);
}

}  // namespace
}  // namespace coordd
