// ReadinessTable beside a naive model, and its promise that each report is answered exactly once,
// under thousands of random reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "server/generation/readiness_table.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

// What must happen, written down with the plainest containers. No groups.
class NaiveTable {
 public:
  explicit NaiveTable(int32_t world_size) : world_size_(world_size) {}

  // Lines "ready a" and "fail a 0,2".
  std::vector<std::string> Report(int32_t rank, const std::string& name, int64_t extent) {
    for (std::set<int32_t>& owed : owed_[name]) {
      if (owed.erase(rank) > 0) return {Line(name, {rank})};
    }
    std::map<int32_t, int64_t>& extents = pending_[name];
    const bool repeats = extents.contains(rank);
    const bool differs = !extents.empty() && extents.begin()->second != extent;
    const int64_t kept = extents.empty() ? extent : extents.begin()->second;
    extents[rank] = kept;
    if (repeats) {
      std::vector<std::string> lines = Fail(name);
      lines.push_back(Line(name, {rank}));
      return lines;
    }
    if (differs) return Fail(name);
    if (static_cast<int32_t>(extents.size()) < world_size_) return {};
    pending_.erase(name);
    return {"ready " + name};
  }

  std::vector<std::string> Withdraw(int32_t rank, const std::string& name) {
    const auto it = pending_.find(name);
    if (it == pending_.end() || !it->second.contains(rank)) return {};
    return Fail(name);
  }

  size_t pending() const { return pending_.size(); }

 private:
  static std::string Line(const std::string& name, const std::set<int32_t>& ranks) {
    std::string line = "fail " + name;
    for (int32_t rank : ranks) absl::StrAppend(&line, " ", rank);
    return line;
  }
  std::vector<std::string> Fail(const std::string& name) {
    std::set<int32_t> in;
    std::set<int32_t> missing;
    for (int32_t rank = 0; rank < world_size_; ++rank) {
      (pending_[name].contains(rank) ? in : missing).insert(rank);
    }
    pending_.erase(name);
    if (!missing.empty()) {
      std::deque<std::set<int32_t>>& owed = owed_[name];
      std::erase_if(owed, [](const std::set<int32_t>& ranks) { return ranks.empty(); });
      if (owed.size() == Tombstones::kMaxPerName) owed.pop_front();
      owed.push_back(missing);
    }
    return {Line(name, in)};
  }

  const int32_t world_size_;
  std::map<std::string, std::map<int32_t, int64_t>> pending_;
  std::map<std::string, std::deque<std::set<int32_t>>> owed_;
};

std::vector<std::string> Lines(ReadinessTable& table, const std::vector<FailedTensor>& failed) {
  std::vector<std::string> lines;
  for (const FailedTensor& failure : failed) {
    lines.push_back("fail " + failure.name);
    for (Rank rank : failure.ranks) absl::StrAppend(&lines.back(), " ", ToInt(rank));
  }
  for (const ReadyTensor& ready : table.TakeReady()) lines.push_back("ready " + ready.spec.name);
  return lines;
}

// As a report that has to be decoded, and as one that is known to be what is pending.
void Report(bool decoded, ReadinessTable& table, Rank rank, const TensorSpec& spec, absl::Time now,
            std::vector<FailedTensor>& failed) {
  auto same = [&spec](const TensorSpec& pending) { return pending == spec; };
  if (decoded || !table.ReportSame(rank, spec.name, same, now, failed))
    table.Report(rank, spec, now, failed);
}

TEST(ReadinessModel, AgreesWithTheNaiveTable) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const int32_t world = 1 + static_cast<int32_t>(random.Below(6));
    ReadinessTotals totals(world);
    ReadinessTable table(ProcessSetId{0}, MemberList::All(world), {}, totals);
    NaiveTable naive(world);
    for (int step = 0; step < 1000; ++step) {
      const int32_t rank = static_cast<int32_t>(random.Below(static_cast<uint64_t>(world)));
      const std::string name(1, static_cast<char>('a' + random.Below(4)));
      std::vector<FailedTensor> failed;
      std::vector<std::string> expected;
      if (random.Below(12) == 0) {
        table.Withdraw(Rank{rank}, name, "", failed);
        expected = naive.Withdraw(rank, name);
      } else {
        const int64_t extent = random.Below(15) == 0 ? 2 : 1;
        Report(step % 2 == 0, table, Rank{rank}, Gradient(name, {extent}), kStart, failed);
        expected = naive.Report(rank, name, extent);
      }
      ASSERT_EQ(Lines(table, failed), expected) << "step " << step;
      ASSERT_EQ(table.pending(), static_cast<int64_t>(naive.pending()));
      ASSERT_THAT(table.CheckConsistency(), IsOk());
    }
  }
}

// Random members of random groups, wrong sizes, wrong groups, unusable reports: whatever a rank
// submits is answered, once, at the latest when it becomes too old.
TEST(ReadinessModel, AnswersEachReportExactlyOnce) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    const int32_t world = 1 + static_cast<int32_t>(random.Below(4));
    ReadinessTotals totals(world);
    ReadinessTable table(ProcessSetId{0}, MemberList::All(world),
                         {.max_pending = static_cast<int64_t>(4 + random.Below(40))}, totals);
    std::map<std::pair<int32_t, std::string>, int> open;
    absl::Time now = kStart;
    auto settle = [&](const std::vector<FailedTensor>& failed) {
      for (const FailedTensor& failure : failed) {
        for (Rank rank : failure.ranks) --open[{ToInt(rank), failure.name}];
      }
      for (const ReadyTensor& ready : table.TakeReady()) {
        for (int32_t rank = 0; rank < world; ++rank) --open[{rank, ready.spec.name}];
      }
      for (const auto& [key, count] : open) ASSERT_GE(count, 0) << key.second;
    };
    for (int step = 0; step < 1000; ++step) {
      const int32_t rank = static_cast<int32_t>(random.Below(static_cast<uint64_t>(world)));
      const uint64_t number = random.Below(8);
      TensorSpec spec = Gradient(absl::StrCat("t", number), {1});
      if (number < 6) spec = InGroup(spec, absl::StrCat("G", number / 3), 3);
      if (random.Below(20) == 0) spec.group_size = 2;
      if (random.Below(20) == 0) spec = InGroup(spec, "G1", 3);
      if (random.Below(20) == 0) spec = InGroup(spec, "", 0);
      if (random.Below(30) == 0) spec.shape = {7};
      std::vector<FailedTensor> failed;
      int& count = open[{rank, spec.name}];
      if (random.Below(15) == 0) {
        table.Withdraw(Rank{rank}, spec.name, "", failed);
      } else {
        ++count;
        if (random.Below(30) == 0) {
          table.Reject(Rank{rank}, spec, absl::UnimplementedError("no"), failed);
        } else {
          Report(step % 2 == 0, table, Rank{rank}, spec, now, failed);
        }
      }
      now += absl::Seconds(static_cast<int64_t>(random.Below(3)));
      table.FailOlderThan(now, absl::Minutes(1), failed);
      settle(failed);
      ASSERT_THAT(table.CheckConsistency(), IsOk());
    }
    std::vector<FailedTensor> failed;
    table.FailOlderThan(now + absl::Hours(1), absl::Minutes(1), failed);
    settle(failed);
    for (const auto& [key, count] : open) {
      ASSERT_EQ(count, 0) << "tensor " << key.second << " of rank " << key.first;
    }
    ASSERT_EQ(table.pending(), 0);
  }
}

}  // namespace
}  // namespace coordd
