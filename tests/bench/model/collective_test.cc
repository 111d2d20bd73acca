// What ways take, where books have a formula for it.
#include "bench/model/collective.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <vector>

namespace coordd::model {
namespace {

// No gaps, and nothing to combine: Hockney's model, of which the formulas are.
constexpr Network kHockney = {.alpha_us = 20, .gap_us = 0, .gbit = 8, .reduce_gbyte = 0};
constexpr double kAlpha = 20;
constexpr double Bytes(double bytes) { return bytes * 1e-3; }

double TimeOf(const std::string& name, const Collective& collective,
              const Network& network = kHockney) {
  for (const Way& way : WaysOf(collective, network)) {
    if (way.name != name) continue;
    const absl::StatusOr<double> us = Microseconds(way, collective, network);
    EXPECT_TRUE(us.ok()) << us.status();
    return us.value_or(-1);
  }
  ADD_FAILURE() << "no " << name;
  return -1;
}

TEST(ModelledCollective, ARingTakesTwoStepsForEachRankButOne) {
  for (const int32_t p : {2, 3, 4, 7, 64}) {
    const double bytes = 4096.0 * p;
    const Collective collective{CollectiveKind::kAllreduce, 4096 * p, p};
    EXPECT_NEAR(TimeOf("ring", collective), 2 * (p - 1) * (kAlpha + Bytes(bytes / p)), 1e-6) << p;
    EXPECT_NEAR(TimeOf("ring", {CollectiveKind::kAllgather, 4096 * p, p}),
                (p - 1) * (kAlpha + Bytes(bytes / p)), 1e-6);
    EXPECT_NEAR(TimeOf("pairwise", {CollectiveKind::kReducescatter, 4096 * p, p}),
                (p - 1) * (kAlpha + Bytes(bytes / p)), 1e-6);
  }
}

TEST(ModelledCollective, DoublingSendsEverythingInEachStep) {
  for (const int32_t p : {2, 4, 32, 1024}) {
    EXPECT_NEAR(TimeOf("recursive_doubling", {CollectiveKind::kAllreduce, 8192, p}),
                std::log2(p) * (kAlpha + Bytes(8192)), 1e-6);
  }
}

TEST(ModelledCollective, HalvingAndDoublingSendsItTwice) {
  for (const int32_t p : {2, 4, 32, 1024}) {
    EXPECT_NEAR(TimeOf("halving_doubling", {CollectiveKind::kAllreduce, 65536, p}),
                2 * std::log2(p) * kAlpha + 2 * Bytes(65536.0 * (p - 1) / p), 1e-6);
  }
}

// The first ranks hand everything to their neighbours, and wait for the end.
TEST(ModelledCollective, AFoldIsTwoStepsMoreAndAllBytesTwice) {
  for (const int32_t p : {3, 6, 12, 100}) {
    // By doubling, who does not fold has sent before his partner has: that start may be hidden.
    const int32_t q = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(p)));
    const Collective collective{CollectiveKind::kAllreduce, 65536, p};
    EXPECT_NEAR(
        TimeOf("halving_doubling", collective),
        2 * (kAlpha + Bytes(65536)) + 2 * std::log2(q) * kAlpha + 2 * Bytes(65536.0 * (q - 1) / q),
        1e-6);
    EXPECT_NEAR(TimeOf("recursive_doubling", collective),
                (2 + std::log2(q)) * (kAlpha + Bytes(65536)), kAlpha);
  }
}

TEST(ModelledCollective, AGridHasTheStepsOfItsSides) {
  const Collective collective{CollectiveKind::kAllreduce, 60 * 4096, 60};  // 2, 2, 3, 5
  EXPECT_NEAR(TimeOf("dimensions", collective),
              2 * (1 + 1 + 2 + 4) * kAlpha + 2 * Bytes(59.0 * 4096), 1e-6);
  EXPECT_NEAR(TimeOf("dimensions", {CollectiveKind::kAllgather, 60 * 4096, 60}),
              8 * kAlpha + Bytes(59.0 * 4096), 1e-6);
  EXPECT_NEAR(TimeOf("dimensions", {CollectiveKind::kReducescatter, 60 * 4096, 60}),
              8 * kAlpha + Bytes(59.0 * 4096), 1e-6);
}

TEST(ModelledCollective, ATreeHasAsManyStepsAsItsRootHasChildren) {
  for (const int32_t p : {2, 4, 5, 64, 4096}) {
    const double steps = std::ceil(std::log2(p));
    EXPECT_NEAR(TimeOf("binomial_tree", {CollectiveKind::kBroadcast, 4096, p}),
                steps * (kAlpha + Bytes(4096)), steps * kAlpha)
        << p;
  }
  // The root's last message leaves when the others have: its alpha is hidden behind their bytes.
  EXPECT_NEAR(TimeOf("binomial_tree", {CollectiveKind::kBroadcast, 1 << 20, 4}),
              2 * (kAlpha + Bytes(1 << 20)), 1e-6);
}

// A rack's uplink carries 2 N (R - 1) / R bytes by dimensions, and rack_size times that by halving
// and doubling.
TEST(ModelledCollective, RacksCountWhereTheirUplinksAreSlow) {
  Network network = kHockney;
  network.alpha_us = 0;
  network.racks = 4;
  network.oversubscription = 8;  // an uplink is as fast as a port
  const int64_t bytes = 1 << 20;
  const Collective collective{CollectiveKind::kAllreduce, bytes, 32, /*labelled=*/true};
  const double halving = TimeOf("halving_doubling", collective, network);
  const double dimensions = TimeOf("dimensions", collective, network);
  const double over_uplinks = 2 * Bytes(bytes * 3.0 / 4);
  EXPECT_GE(dimensions, over_uplinks);
  // Who crosses first is ahead, and in the way of those whose messages are waited for.
  EXPECT_LE(dimensions, 1.1 * (over_uplinks + 2 * Bytes(bytes * 7.0 / 8)));
  EXPECT_GE(halving, 8 * over_uplinks);
}

TEST(ModelledCollective, SlicesHideTheStartOfMessages) {
  const Collective collective{CollectiveKind::kAllreduce, 64 << 20, 8};
  const double whole = TimeOf("halving_doubling", collective);
  const double slices = TimeOf("slices of halving_doubling", collective);
  EXPECT_NEAR(slices, whole, whole * 0.1);
  Network slow = kHockney;
  slow.reduce_gbyte = 1;
  EXPECT_LT(TimeOf("slices of halving_doubling", collective, slow),
            TimeOf("halving_doubling", collective, slow));
}

TEST(ModelledCollective, FourThousandNodesAreAnsweredExactly) {
  const Collective collective{CollectiveKind::kAllreduce, 64 << 20, 4096};
  EXPECT_NEAR(TimeOf("ring", collective), 2 * 4095 * (kAlpha + Bytes(16384)), 1e-3);
}

TEST(ModelledCollective, BytesAreMadeEvenWhereThatIsLittle) {
  EXPECT_EQ(EvenBytes(1 << 20, 8), 1 << 20);
  EXPECT_EQ(EvenBytes(1 << 20, 6), 1048584);
  EXPECT_EQ(EvenBytes(1 << 10, 4096), 1 << 10);
}

}  // namespace
}  // namespace coordd::model
