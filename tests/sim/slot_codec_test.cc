// Slots as coordd and members use them, over streams that take their time: whatever is under way,
// each report means what its sender meant, and each plan what coordd planned.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "server/generation/slot_cache.h"
#include "tests/support/status_matchers.h"
#include "worker/protocol/slot_table.h"

namespace coordd {
namespace {

enum class Bug { kNone, kForgetsBeforeAllKnow, kPlansWhatIsForgotten };

// What a message says, beside what is said in it.
struct Report {
  std::vector<TensorSpec> full;
  std::vector<v1::CachedTensors> cached;
  std::multiset<std::string> meant;  // by slot
};
struct Plan {
  std::vector<std::pair<int64_t, std::string>> tensors;   // (slot, name as coordd means it)
  std::vector<std::pair<int64_t, std::string>> bindings;  // (slot, name)
};

class Codec {
 public:
  Codec(uint64_t seed, int32_t members, int64_t capacity, Bug bug)
      : random_(seed),
        bug_(bug),
        totals_(members),
        table_(ProcessSetId{0}, MemberList::All(members), ReadinessBounds{}, totals_),
        cache_(capacity + (bug == Bug::kPlansWhatIsForgotten ? 1 : 0), table_, totals_.kept) {
    for (int32_t i = 0; i < members; ++i) members_.push_back({SlotTable(capacity), {}, {}, {}, 0});
    for (int i = 0; i < 60; ++i) {
      TensorSpec spec;
      spec.name = absl::StrCat("t", random_.Below(6));
      spec.op = ReduceOp::kSum;
      spec.shape = {static_cast<int64_t>(1 + random_.Below(8) / 7)};  // seldom another one
      program_.push_back(spec);
    }
  }

  absl::Status Run() {
    for (int step = 0; step < 20'000; ++step) {
      const auto index = random_.Below(members_.size());
      Member& member = members_[index];
      switch (random_.Below(3)) {
        case 0:
          Submit(member);
          break;
        case 1:
          COORDD_RETURN_IF_ERROR(Hear(static_cast<int32_t>(index), member));
          break;
        default:
          COORDD_RETURN_IF_ERROR(Read(member));
      }
      if (random_.Below(4) == 0) MakePlan();
      if (Finished()) return absl::OkStatus();
    }
    return absl::InternalError("not all was planned");
  }
  int64_t by_slot() const { return by_slot_; }
  int64_t forgotten() const { return cache_.forgotten(); }

 private:
  struct Member {
    SlotTable slots;
    std::deque<Report> to_coordd;
    std::deque<Plan> from_coordd;
    std::map<std::string, TensorSpec> open;
    size_t next = 0;
  };

  bool Finished() const {
    return std::all_of(members_.begin(), members_.end(), [this](const Member& member) {
      return member.next == program_.size() && member.open.empty();
    });
  }

  // As far as no name is submitted twice.
  void Submit(Member& member) {
    Report report;
    for (uint64_t n = 1 + random_.Below(3); n > 0 && member.next < program_.size(); --n) {
      const TensorSpec& spec = program_[member.next];
      if (!member.open.emplace(spec.name, spec).second) break;
      ++member.next;
      if (member.slots.Report(spec)) {
        report.meant.insert(ToString(spec) + spec.name);
        ++by_slot_;
      } else {
        report.full.push_back(spec);
        member.slots.Mention(spec.process_set);
      }
    }
    report.cached = member.slots.Take();
    if (report.full.empty() && report.cached.empty()) return;
    member.to_coordd.push_back(std::move(report));
  }

  absl::Status Hear(int32_t index, Member& member) {
    if (member.to_coordd.empty()) return absl::OkStatus();
    const Report report = std::move(member.to_coordd.front());
    member.to_coordd.pop_front();
    std::vector<FailedTensor> failed;
    std::multiset<std::string> decoded;
    for (const TensorSpec& spec : report.full) table_.Report(Rank{index}, spec, now_, failed);
    for (const v1::CachedTensors& cached : report.cached) {
      if (!cache_.Heard(index, cached.known()))
        return absl::InternalError("a member knows what it cannot know");
      const bool all = ForEachSlot(cached.first_slot(), cached.bits(), [&](int64_t slot) {
        ReadinessTable::Known* known = cache_.Find(slot);
        if (known == nullptr) return false;
        decoded.insert(ToString(known->spec) + known->spec.name);
        table_.ReportKnown(Rank{index}, *known, now_, failed);
        return true;
      });
      if (!all) return absl::InternalError("coordd has forgotten what a member means");
    }
    if (decoded != report.meant) return absl::InternalError("a report means something else");
    if (!failed.empty()) return failed.front().fault.status;
    return table_.CheckConsistency();
  }

  void MakePlan() {
    const std::vector<ReadyTensor> ready = table_.TakeReady();
    if (ready.empty()) return;
    Plan plan;
    std::vector<const ReadyTensor*> unknown;
    for (const ReadyTensor& tensor : ready) {
      const int64_t slot = cache_.SlotOf(tensor);
      plan.tensors.emplace_back(slot, tensor.spec.name);
      if (slot == 0) unknown.push_back(&tensor);
    }
    for (const ReadyTensor* tensor : unknown) {
      if (const int64_t slot = cache_.Give(*tensor); slot != 0)
        plan.bindings.emplace_back(slot, tensor->spec.name);
      for (size_t i = 0; bug_ == Bug::kForgetsBeforeAllKnow && i < members_.size(); ++i)
        ASSERT_TRUE(cache_.Heard(static_cast<int32_t>(i), cache_.given()));
    }
    for (Member& member : members_) member.from_coordd.push_back(plan);
  }

  absl::Status Read(Member& member) {
    if (member.from_coordd.empty()) return absl::OkStatus();
    const Plan plan = std::move(member.from_coordd.front());
    member.from_coordd.pop_front();
    std::map<std::string, TensorSpec> planned;
    for (const auto& [slot, name] : plan.tensors) {
      const std::string* meant = slot == 0 ? &name : member.slots.NameOf(ProcessSetId{0}, slot);
      if (meant == nullptr) return absl::InternalError("a member has forgotten what coordd means");
      if (*meant != name) return absl::InternalError("a plan means something else");
      const auto open = member.open.find(name);
      if (open == member.open.end()) return absl::InternalError("planned, but not submitted");
      planned.insert(member.open.extract(open));
    }
    for (const auto& [slot, name] : plan.bindings) {
      if (!member.slots.Learn(slot, planned.at(name)))
        return absl::InternalError("a slot comes out of order");
    }
    return absl::OkStatus();
  }

  Random random_;
  const Bug bug_;
  const absl::Time now_ = absl::FromUnixSeconds(1);
  ReadinessTotals totals_;
  ReadinessTable table_;
  SlotCache cache_;
  std::vector<TensorSpec> program_;
  std::vector<Member> members_;
  int64_t by_slot_ = 0;
};

TEST(SlotCodecTest, WhateverIsUnderWayASlotMeansWhatItsSenderMeant) {
  int64_t by_slot = 0, forgotten = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    for (int64_t capacity : {1, 2, 5, 64}) {
      Codec codec(seed, static_cast<int32_t>(1 + seed % 4), capacity, Bug::kNone);
      ASSERT_THAT(codec.Run(), IsOk()) << "seed " << seed << ", capacity " << capacity;
      by_slot += codec.by_slot();
      forgotten += codec.forgotten();
    }
  }
  EXPECT_GT(by_slot, 10'000);
  EXPECT_GT(forgotten, 10'000);
}

// How many of the seeds notice.
int64_t Found(Bug bug) {
  int64_t found = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) found += Codec(seed, 3, 2, bug).Run().ok() ? 0 : 1;
  return found;
}

TEST(SlotCodecTest, PlantedBugsAreFound) {
  EXPECT_EQ(Found(Bug::kNone), 0);
  EXPECT_GT(Found(Bug::kForgetsBeforeAllKnow), 0);
  EXPECT_GT(Found(Bug::kPlansWhatIsForgotten), 0);
}

TEST(SlotCodecTest, NothingIsGivenWithoutCapacity) {
  Codec codec(1, 3, 0, Bug::kNone);
  EXPECT_THAT(codec.Run(), IsOk());
  EXPECT_EQ(codec.by_slot(), 0);
}

}  // namespace
}  // namespace coordd
