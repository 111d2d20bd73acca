// What several members of a node say at once means what each of them would say alone: two coordds
// hear the same, one by single messages and one by shared ones, and tell their members the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "server/generation/generation_state.h"
#include "server/job/coordinator_state.h"
#include "server/members/node_members.h"
#include "tests/server/support/builders.h"
#include "tests/server/support/effects_text.h"
#include "tests/server/support/invariants.h"
#include "tests/server/support/known_slots.h"
#include "tests/support/histories.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

constexpr Epoch kEpoch{5};

// The members of one job on some nodes. Sessions are those of node sessions 1, 2, …
class TwoCoordds {
 public:
  explicit TwoCoordds(uint64_t seed) : random_(seed) {
    options_.schedule_after_steps = seed % 3 == 0 ? 3 : 0;
    options_.slots = seed % 2 == 0 ? 4096 : 3;
    options_.max_pending_tensors_per_job = seed % 5 == 0 ? 3 : 1000;
    options_.stall_warning = absl::Seconds(3);
    options_.stall_abort = absl::Seconds(20);
    alone_ = std::make_unique<CoordinatorState>(options_, kEpoch);
    shared_ = std::make_unique<CoordinatorState>(options_, kEpoch);
    nodes_ = 1 + static_cast<int32_t>(random_.Below(3));
    per_node_ = 2 + static_cast<int32_t>(random_.Below(4));
    known_.Begin(options_.slots);
  }

  void Join() {
    for (int32_t node = 1; node <= nodes_; ++node) {
      for (int32_t member = 1; member <= per_node_; ++member) {
        v1::WorkerMessage message;
        v1::Join& join = *message.mutable_join();
        join = JoinOf(absl::StrCat("w", node, ".", member), absl::StrCat("node", node));
        join.set_knows_slots(true);
        join.set_executes_schedules(true);
        join.mutable_limits()->set_min_workers(nodes_ * per_node_);
        join.mutable_limits()->set_max_workers(nodes_ * per_node_);
        Say(node, member, 1, message);
      }
    }
    Tick();
  }

  void RandomStep() {
    const uint64_t what = random_.Below(100);
    const auto node = static_cast<int32_t>(1 + random_.Below(static_cast<uint64_t>(nodes_)));
    if (what < 45) {
      AllReport();
    } else if (what < 70) {
      Say(node, 1, per_node_, Report());
    } else if (what < 80) {
      const auto member = static_cast<int32_t>(1 + random_.Below(static_cast<uint64_t>(per_node_)));
      const auto count =
          static_cast<int32_t>(1 + random_.Below(static_cast<uint64_t>(per_node_ - member + 1)));
      Say(node, member, count, Report());
    } else if (what < 84) {
      Say(node, 1, 1, Withdrawn());
    } else if (what < 87) {
      v1::WorkerMessage join = MessageOf(kEpoch, Generation{1});
      v1::TensorSpec& spec = *join.mutable_tensors_ready()->add_tensors();
      spec.set_name("join");
      spec.set_kind(v1::COLLECTIVE_KIND_JOIN);
      Say(node, 1, per_node_, join);
    } else if (what < 90) {
      v1::WorkerMessage beat = MessageOf(kEpoch, Generation{1});
      beat.mutable_heartbeat()->set_sent_ns(7);
      Say(node, 1, per_node_, beat);
    } else if (what < 91 && random_.Below(8) == 0) {
      v1::WorkerMessage wrong = MessageOf(kEpoch, Generation{random_.Below(2) == 0 ? 1 : 9});
      wrong.mutable_tensors_ready()->add_cached()->set_known(1 << 20);
      Say(node, 1, per_node_, wrong);
    }
    now_ += absl::Microseconds(static_cast<int64_t>(random_.Below(300)));
    Tick();
  }

  int64_t planned() const { return planned_; }

 private:
  // By slot what has one, by spec what has none.
  v1::WorkerMessage Report() {
    v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
    v1::TensorsReady& ready = *message.mutable_tensors_ready();
    known_.Hear(random_);
    const std::string name = absl::StrCat("t", random_.Below(5));
    if (random_.Below(6) == 0) {
      known_.ReportAny(random_, ready);
    } else if (random_.Below(2) == 0) {
      // Several in one message, the same ones again and again.
      const std::vector<std::string> together = random_.Below(3) == 0
                                                    ? std::vector<std::string>{"t1", "t2"}
                                                    : std::vector<std::string>{"t0", "t1", "t2"};
      if (known_.ReportTogether(0, together, ready)) return message;
      for (const std::string& one : together) ReportOne(one, ready);
    } else {
      ReportOne(name, ready);
    }
    return message;
  }
  void ReportOne(const std::string& name, v1::TensorsReady& ready) {
    if (known_.Report(0, name, ready)) return;
    TensorSpec spec = Gradient(name, {random_.Below(30) == 0 ? 9 : 4});
    if (name == "t4" && random_.Below(2) == 0) spec = InGroup(std::move(spec), "g", 1);
    ToProto(spec, ready.add_tensors());
  }
  void AllReport() {
    const v1::WorkerMessage message = Report();
    for (int32_t node = 1; node <= nodes_; ++node) Say(node, 1, per_node_, message);
  }
  v1::WorkerMessage Withdrawn() {
    v1::WorkerMessage message = MessageOf(kEpoch, Generation{1});
    message.mutable_tensors_withdrawn()->add_names(absl::StrCat("t", random_.Below(5)));
    return message;
  }

  void Say(int32_t node, int32_t first, int32_t count, const v1::WorkerMessage& message) {
    const NodeMembers members(node);
    Effects alone, shared;
    for (int32_t i = 0; i < count; ++i) {
      const SessionMessage in{members.IdOf(first + i), message};
      history_.Saw(in);
      alone_->Step(in, now_, alone);
    }
    shared_->Step(SharedMessage{{{members.IdOf(first), count}},
                                std::make_shared<const v1::WorkerMessage>(message)},
                  now_, shared);
    Compare(alone, shared);
  }
  void Tick() {
    Effects alone, shared;
    alone_->Tick(now_, alone);
    shared_->Tick(now_, shared);
    Compare(alone, shared);
  }

  void Compare(const Effects& alone, const Effects& shared) {
    ASSERT_EQ(TextOf(shared), TextOf(alone));
    ASSERT_THAT(shared_->CheckConsistency(), IsOk());
    ASSERT_THAT(history_.Saw(shared), IsOk());
    for (const Outgoing& out : shared.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver == nullptr) continue;
      planned_ += deliver->message->plan().batches_size();
      if (deliver->message->has_plan()) known_.Say(deliver->message);
    }
  }
  static std::string TextOf(const Effects& effects) {
    const EffectNames names{[](SessionId session) { return absl::StrCat(ToInt(session)); },
                            [](CallId call) { return absl::StrCat(ToInt(call)); }};
    std::vector<std::string> lines;
    for (const Outgoing& out : effects.outgoing) lines.push_back(ToText(out, names));
    for (const Event& event : effects.events) lines.push_back(ToText(event));
    return absl::StrJoin(lines, "\n");
  }

  Random random_;
  ServerOptions options_;
  std::unique_ptr<CoordinatorState> alone_, shared_;
  HistoryChecker history_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  int32_t nodes_ = 1, per_node_ = 1;
  KnownSlots known_;  // all hear the same at once
  int64_t planned_ = 0;
};

TEST(SharedReports, MeanWhatEachOfThemMeansAlone) {
  int64_t planned = 0;
  for (uint64_t seed = 1; seed <= Histories<uint64_t>(300); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    TwoCoordds both(seed);
    both.Join();
    for (int step = 0; step < 200; ++step) {
      both.RandomStep();
      ASSERT_FALSE(testing::Test::HasFailure()) << "step " << step;
    }
    planned += both.planned();
  }
  EXPECT_GT(planned, Histories(5000));
}

// What costs as much as one: reports by slot where nothing else is to be done, and only these.
TEST(SharedReports, AreCountedAtOnceWhereNothingElseIsToBeDone) {
  ServerOptions options;
  options.schedule_after_steps = 0;
  GenerationState::Identity identity{"train", kEpoch, Generation{1}};
  identity.slots = 8;
  GenerationState state(identity, options, {SessionId{10}, SessionId{11}, SessionId{12}});
  const absl::Time now = absl::FromUnixSeconds(1000);
  Effects effects;
  v1::TensorsReady by_spec;
  ToProto(Gradient("w", {4}), by_spec.add_tensors());
  for (int32_t rank = 0; rank < 3; ++rank)
    ASSERT_THAT(state.OnTensorsReady(Rank{rank}, by_spec, {now, effects}), IsOk());
  state.Tick({now, effects});
  v1::TensorsReady by_slot;
  by_slot.add_cached()->set_known(1);
  for (int32_t rank = 0; rank < 3; ++rank)
    ASSERT_THAT(state.OnTensorsReady(Rank{rank}, by_slot, {now, effects}), IsOk());
  by_slot.mutable_cached(0)->set_first_slot(1);
  by_slot.mutable_cached(0)->set_bits("\1");

  EXPECT_EQ(state.GroupOf({SessionId{11}, 3}), nullptr);  // one of them is nobody
  GenerationState::RankGroup* group = state.GroupOf({SessionId{11}, 2});
  ASSERT_NE(group, nullptr);
  EXPECT_FALSE(state.OnSharedReady(*group, by_spec, {now, effects}));
  EXPECT_TRUE(state.OnSharedReady(*group, by_slot, {now, effects}));
  EXPECT_FALSE(state.OnSharedReady(*group, by_slot, {now, effects}));  // again, while it is pending
  effects = Effects();
  ASSERT_THAT(state.OnTensorsReady(Rank{0}, by_slot, {now, effects}), IsOk());
  state.Tick({now, effects});
  ASSERT_EQ(effects.outgoing.size(), 1u);
  EXPECT_EQ(std::get<Deliver>(effects.outgoing[0]).message->plan().batches(0).slots(0), 1);
  EXPECT_THAT(state.CheckConsistency(), IsOk());
}

}  // namespace
}  // namespace coordd
