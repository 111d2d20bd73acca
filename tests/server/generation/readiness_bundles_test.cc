// Tensors that are counted together mean what they would mean one by one: two tables hear the same,
// one by bundles where it can, the other tensor by tensor and rank by rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/protocol/slot_dictionary.h"
#include "server/generation/readiness_table.h"
#include "tests/server/support/builders.h"
#include "tests/support/histories.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using Known = ReadinessTable::Known;

constexpr int64_t kTensors = 6;

TensorSpec SpecOf(int64_t slot) {
  TensorSpec spec = Gradient(absl::StrCat("a tensor with a name of some length ", slot), {slot});
  if (slot % 3 == 0) spec.kind = CollectiveKind::kAllgather;
  if (slot % 3 == 0) spec.op = ReduceOp::kNone;
  return spec;
}

// A table and what its members know by slots 1, 2, …
struct Side {
  explicit Side(int32_t world, int64_t max_pending)
      : totals(world),
        table(ProcessSetId{0}, MemberList::All(world), {.max_pending = max_pending}, totals) {
    for (int64_t slot = 1; slot <= kTensors; ++slot)
      known.push_back({.spec = SpecOf(slot), .bytes = slot * 4 + slot % 2, .slot = slot});
  }
  ~Side() { table.ForgetAll(); }

  std::vector<std::string> TakeLines() {
    std::vector<std::string> lines;
    for (const FailedTensor& failure : std::exchange(failed, {})) {
      lines.push_back(absl::StrCat("fail ", failure.name, " ", failure.fault.status.ToString()));
      for (Rank rank : failure.ranks) absl::StrAppend(&lines.back(), " ", ToInt(rank));
    }
    std::vector<ReadyTensor> planned = table.TakeReady();
    for (const ReadyTensor& ready : planned) {
      lines.push_back(absl::StrCat("ready ", ready.spec.name, " ", ToString(ready.spec), " ",
                                   ready.fused_bytes, " bytes, slot ", ready.slot, " since ",
                                   absl::FormatTime(ready.first_report),
                                   ready.for_joined ? " for joined" : ""));
    }
    table.Reuse(std::move(planned));
    return lines;
  }
  std::vector<std::string> Pending(absl::Time now) const {
    std::vector<std::string> lines;
    for (const PendingTensor& one : table.Stalled(now, absl::ZeroDuration(), 100)) {
      lines.push_back(absl::StrCat(one.name, " since ", absl::FormatTime(one.since), " ready ",
                                   RanksString(one.ready, one.ready_count), " missing ",
                                   RanksString(one.missing, one.missing_count)));
    }
    return lines;
  }

  ReadinessTotals totals;
  ReadinessTable table;
  std::deque<Known> known;
  std::vector<FailedTensor> failed;
};

class ReadinessBundles {
 public:
  explicit ReadinessBundles(uint64_t seed)
      : random_(seed),
        world_(1 + static_cast<int32_t>(random_.Below(130))),
        bundled_(world_, seed % 4 == 0 ? 5 : 1000),
        single_(world_, seed % 4 == 0 ? 5 : 1000) {}

  void RandomStep() {
    now_ += absl::Milliseconds(static_cast<int64_t>(random_.Below(3)));
    const uint64_t what = random_.Below(100);
    if (what < 45) {
      Report(SomeSlots(), SomeRanks());
    } else if (what < 88) {
      // All others, so that something is complete.
      const std::vector<int64_t> slots = SomeSlots();
      for (int32_t rank = 0; rank < world_; ++rank) {
        const bool has = Has(Rank{rank}, slots);
        if (!has) Report(slots, {Rank{rank}});
      }
    } else {
      OfOne(75 + random_.Below(25));
    }
  }

  void Compare() {
    ASSERT_EQ(bundled_.TakeLines(), single_.TakeLines());
    ASSERT_EQ(bundled_.Pending(now_), single_.Pending(now_));
    ASSERT_EQ(bundled_.table.pending(), single_.table.pending());
    ASSERT_EQ(bundled_.table.stalled(), single_.table.stalled());
    ASSERT_EQ(bundled_.totals.state_bytes, single_.totals.state_bytes);
    ASSERT_THAT(bundled_.table.CheckConsistency(), IsOk());
    ASSERT_THAT(single_.table.CheckConsistency(), IsOk());
  }

  int64_t together() const { return together_; }

 private:
  // What concerns one tensor, or one rank, or time.
  void OfOne(uint64_t what) {
    const Rank rank{static_cast<int32_t>(random_.Below(static_cast<uint64_t>(world_)))};
    const auto slot = static_cast<int64_t>(1 + random_.Below(kTensors));
    const bool differs = random_.Below(4) == 0;
    const bool joins = what == 98 && random_.Below(10) == 0;
    for (Side* side : {&bundled_, &single_}) {
      if (what < 80) {
        TensorSpec spec = SpecOf(slot);
        if (differs) spec.dtype = DataType::kFloat64;
        side->table.Report(rank, spec, now_, side->failed);
      } else if (what < 84) {
        side->table.Withdraw(rank, SpecOf(slot).name, "why not", side->failed);
      } else if (what < 88) {
        side->table.ReportKnown(rank, KnownOf(*side, slot), now_, side->failed);
      } else if (what < 91) {
        side->table.Forget(KnownOf(*side, slot));
      } else if (what < 94) {
        side->table.FailOlderThan(now_, absl::Milliseconds(30), side->failed);
      } else if (what < 96) {
        int64_t count = 0;
        side->table.NewlyStalled(now_, absl::Milliseconds(10), 3, count);
      } else if (what < 97) {
        side->table.Forgive(absl::Milliseconds(1));
      } else if (what < 98) {
        side->table.Reject(rank, SpecOf(slot), absl::UnimplementedError("no"), side->failed);
      } else if (joins) {
        side->table.Join(rank, side->failed);
      } else {
        side->table.EndJoin();
      }
    }
    if (what == 98 && joins) joined_ = true;
    if (what >= 98 && !joins) joined_ = false;
  }

  static Known& KnownOf(Side& side, int64_t slot) {
    return side.known[static_cast<size_t>(slot - 1)];
  }
  // The same few sets again and again.
  std::vector<int64_t> SomeSlots() {
    static const std::vector<std::vector<int64_t>> kSets = {
        {1, 2, 3, 4}, {1, 2, 3, 4}, {5, 6}, {2, 3}, {4}, {1, 2, 3, 4, 5, 6}};
    return kSets[random_.Below(kSets.size())];
  }
  std::vector<Rank> SomeRanks() {
    const auto first = static_cast<int32_t>(random_.Below(static_cast<uint64_t>(world_)));
    const auto count =
        static_cast<int32_t>(1 + random_.Below(static_cast<uint64_t>(world_ - first)));
    std::vector<Rank> ranks;
    for (int32_t i = 0; i < count; ++i) ranks.push_back(Rank{first + i});
    return ranks;
  }
  bool Has(Rank rank, const std::vector<int64_t>& slots) {
    for (int64_t slot : slots) {
      const auto pending = single_.table.Find(SpecOf(slot).name);
      if (!pending.has_value()) continue;
      if (world_ > 2 * static_cast<int32_t>(ReadinessTable::kMaxNamedRanks)) return true;
      const auto& ready = pending->ready;
      const auto& missing = pending->missing;
      if (std::find(ready.begin(), ready.end(), rank) != ready.end()) return true;
      if (std::find(missing.begin(), missing.end(), rank) == missing.end()) return true;
    }
    return false;
  }

  void Report(const std::vector<int64_t>& slots, const std::vector<Rank>& ranks) {
    if (joined_ || !ReportTogether(slots, ranks)) ReportEach(bundled_, slots, ranks);
    ReportEach(single_, slots, ranks);
  }
  void ReportEach(Side& side, const std::vector<int64_t>& slots, const std::vector<Rank>& ranks) {
    for (Rank rank : ranks)
      for (int64_t slot : slots)
        side.table.ReportKnown(rank, KnownOf(side, slot), now_, side.failed);
  }
  bool ReportTogether(const std::vector<int64_t>& slots, const std::vector<Rank>& ranks) {
    const SlotBits packed = PackSlots(slots);
    const ReadinessTable::Slots as{packed.first, packed.bits};
    Known& first = KnownOf(bundled_, slots[0]);
    const auto report = [&] {
      if (ranks.size() == 1) return bundled_.table.ReportBundle(first, as, ranks[0], now_);
      const ReadinessTable::Reporters reporters(bundled_.table.members(), ranks);
      return bundled_.table.ReportBundle(first, as, reporters, now_);
    };
    auto tensors = report();
    if (!tensors.has_value()) {
      std::vector<Known*> all;
      for (int64_t slot : slots) all.push_back(&KnownOf(bundled_, slot));
      if (bundled_.table.BeginBundle(all, as, ranks[0], now_)) tensors = report();
    }
    if (!tensors.has_value()) return false;
    EXPECT_EQ(*tensors, static_cast<int64_t>(slots.size()));
    together_ += *tensors;
    return true;
  }

  Random random_;
  const int32_t world_;
  absl::Time now_ = kStart;
  Side bundled_, single_;
  bool joined_ = false;
  int64_t together_ = 0;
};

TEST(ReadinessBundlesTest, MeanWhatTheirTensorsMeanOneByOne) {
  int64_t together = 0;
  for (uint64_t seed = 1; seed <= Histories<uint64_t>(40); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    ReadinessBundles both(seed);
    for (int step = 0; step < 300; ++step) {
      both.RandomStep();
      both.Compare();
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "step " << step;
    }
    together += both.together();
  }
  EXPECT_GT(together, Histories(3000));
}

TEST(ReadinessBundlesTest, NothingHappensWhereOneOfThemCannotBegin) {
  Side side(2, /*max_pending=*/1000);
  std::vector<Known*> both = {&side.known[0], &side.known[1]};
  const SlotBits packed = PackSlots({1, 2});
  const ReadinessTable::Slots slots{packed.first, packed.bits};
  // As another tensor of its name, of which the slot does not know.
  TensorSpec other = SpecOf(2);
  other.shape = {77};
  side.table.Report(Rank{0}, other, kStart, side.failed);
  EXPECT_FALSE(side.table.BeginBundle(both, slots, Rank{1}, kStart));
  EXPECT_EQ(side.table.pending(), 1);
  EXPECT_EQ(side.known[0].pending, nullptr);
  EXPECT_THAT(side.table.CheckConsistency(), IsOk());
  EXPECT_EQ(side.table.ReportBundle(side.known[0], slots, Rank{1}, kStart), std::nullopt);
  EXPECT_TRUE(side.failed.empty());

  // Two slots of one tensor: the second would be a second report of it.
  Known again = side.known[2];
  again.slot = 9;
  const std::vector<Known*> twice = {&side.known[2], &again};
  EXPECT_FALSE(side.table.BeginBundle(twice, slots, Rank{1}, kStart));
  EXPECT_EQ(side.table.pending(), 1);
  EXPECT_THAT(side.table.CheckConsistency(), IsOk());
}

TEST(ReadinessBundlesTest, ARankIsCountedOnce) {
  Side side(3, /*max_pending=*/1000);
  std::vector<Known*> both = {&side.known[0], &side.known[1]};
  const SlotBits packed = PackSlots({1, 2});
  const ReadinessTable::Slots slots{packed.first, packed.bits};
  ASSERT_TRUE(side.table.BeginBundle(both, slots, Rank{0}, kStart));
  EXPECT_EQ(side.table.ReportBundle(side.known[0], slots, Rank{0}, kStart), 2);
  EXPECT_EQ(side.table.ReportBundle(side.known[0], slots, Rank{0}, kStart), std::nullopt);
  const ReadinessTable::Reporters overlap(side.table.members(), Ranks({0, 1}));
  EXPECT_EQ(side.table.ReportBundle(side.known[0], slots, overlap, kStart), std::nullopt);
  // Other slots are no report of the bundle, whatever they begin with.
  const SlotBits more = PackSlots({1, 2, 3});
  EXPECT_EQ(side.table.ReportBundle(side.known[0], {more.first, more.bits}, Rank{1}, kStart),
            std::nullopt);
  EXPECT_FALSE(side.table.has_ready());
  const ReadinessTable::Reporters others(side.table.members(), Ranks({1, 2}));
  EXPECT_EQ(side.table.ReportBundle(side.known[0], slots, others, kStart), 2);
  EXPECT_EQ(side.table.TakeReady().size(), 2u);
  EXPECT_EQ(side.table.pending(), 0);
}

}  // namespace
}  // namespace coordd
