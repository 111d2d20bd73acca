// What a ReadinessTable keeps its tensors in, by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/generation/readiness_bundles.h"
#include "server/generation/readiness_entries.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ReadinessParts : public ::testing::Test {
 protected:
  std::vector<std::string> Stalled(absl::Time now) {
    std::vector<std::string> names;
    entries_.VisitStalled(now, absl::Minutes(1),
                          [&](const ReadinessEntry& entry) { names.push_back(entry.spec.name); });
    return names;
  }
  const MemberList members_ = MemberList::All(3);
  ReadinessEntries entries_{members_};
  TensorBundles bundles_{members_, entries_};
};

TEST_F(ReadinessParts, AnEntryIsFoundByNameUntilItIsTaken) {
  ReadinessEntry* const a = entries_.Add(Rank{1}, Gradient("a", {4}), kStart);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(entries_.Add(Rank{2}, Gradient("a", {4}), kStart), nullptr);
  EXPECT_EQ(entries_.Find("a"), a);
  EXPECT_GT(entries_.state_bytes(), 0);
  KnownTensor known{.spec = Gradient("a", {4}), .bytes = 16, .slot = 1, .pending = a};
  a->known = &known;
  EXPECT_THAT(entries_.CheckConsistency(), IsOk());
  entries_.Keep(entries_.Take(*a));
  EXPECT_EQ(known.pending, nullptr);
  EXPECT_EQ(entries_.Find("a"), nullptr);
  EXPECT_EQ(entries_.state_bytes(), 0);
  EXPECT_EQ(entries_.Add(Rank{0}, Gradient("b", {4}), kStart), a) << "its memory serves the next";
  EXPECT_TRUE(entries_.Find("b")->own.empty());
}

TEST_F(ReadinessParts, EachStallsOnceInTheOrderOfFirstReports) {
  entries_.Add(Rank{0}, Gradient("b", {4}), kStart);
  entries_.Add(Rank{0}, Gradient("a", {4}), kStart + absl::Seconds(1));
  EXPECT_THAT(Stalled(kStart + absl::Seconds(59)), IsEmpty());
  EXPECT_EQ(entries_.NextStall(absl::Minutes(1), absl::Minutes(2)), kStart + absl::Minutes(1));
  EXPECT_THAT(Stalled(kStart + absl::Minutes(1)), ElementsAre("b"));
  EXPECT_THAT(Stalled(kStart + absl::Minutes(2)), ElementsAre("a"));
  EXPECT_EQ(entries_.stalled(), 2);
  entries_.Erase(*entries_.Find("b"));
  EXPECT_EQ(entries_.stalled(), 1);
  EXPECT_EQ(entries_.NextStall(absl::Minutes(1), absl::Minutes(2)),
            kStart + absl::Seconds(1) + absl::Minutes(2));
  entries_.Forgive(absl::Minutes(1));
  EXPECT_EQ(entries_.NextStall(absl::Minutes(1), absl::Minutes(2)),
            kStart + absl::Seconds(1) + absl::Minutes(3));
}

TEST_F(ReadinessParts, ABundleBeginsWholeOrNotAtAll) {
  KnownTensor a{.spec = Gradient("a", {4})}, b{.spec = Gradient("b", {4})};
  const ReportedSlots slots{.first = 1, .bits = "\x03"};
  EXPECT_FALSE(bundles_.Begin({&a}, slots, Rank{0}, kStart)) << "one saves nothing";
  entries_.Add(Rank{0}, Gradient("b", {4}), kStart);
  EXPECT_FALSE(bundles_.Begin({&a, &b}, slots, Rank{0}, kStart));
  EXPECT_EQ(entries_.Find("a"), nullptr);
  entries_.Erase(*entries_.Find("b"));
  ASSERT_TRUE(bundles_.Begin({&a, &b}, slots, Rank{0}, kStart));
  EXPECT_THAT(bundles_.CheckConsistency(), IsOk());
  EXPECT_NE(bundles_.Find(a, slots), nullptr);
  EXPECT_EQ(bundles_.Find(a, {.first = 2, .bits = "\x03"}), nullptr);
  EXPECT_EQ(bundles_.Find(a, {.first = 1, .bits = "\x01"}), nullptr);
}

TEST_F(ReadinessParts, WhoIsInOfABundleIsInOfEachOfItsTensorsBehindItsEnd) {
  KnownTensor a{.spec = Gradient("a", {4}), .bytes = 16},
      b{.spec = Gradient("b", {4}), .bytes = 16};
  const ReportedSlots slots{.first = 1, .bits = "\x03"};
  ASSERT_TRUE(bundles_.Begin({&a, &b}, slots, Rank{0}, kStart));
  ReadinessBundle& bundle = *bundles_.Find(a, slots);
  bundle.in.Insert(Rank{0});
  bundle.in.Insert(Rank{2});
  EXPECT_EQ(&a.pending->in(), &bundle.in);
  bundles_.DissolveAll();
  EXPECT_TRUE(bundles_.empty());
  EXPECT_THAT(a.pending->in().Ranks(), ElementsAre(Rank{0}, Rank{2}));
  EXPECT_EQ(b.pending->sum_bytes, 2 * SizeBytes(b.spec));
  EXPECT_THAT(entries_.CheckConsistency(), IsOk());
  EXPECT_THAT(bundles_.CheckConsistency(), IsOk());
}

}  // namespace
}  // namespace coordd
