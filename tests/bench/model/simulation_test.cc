// Messages in virtual time: what meets where, and what overlaps.
#include "bench/model/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace coordd::model {
namespace {

constexpr int64_t kKilobyte = 1000;  // 8 us at 1 Gbit/s
constexpr Network kNetwork = {.alpha_us = 10, .gap_us = 2, .gbit = 1, .reduce_gbyte = 0};

AlgorithmStep Sends(std::vector<std::pair<int32_t, int64_t>> sends) {
  AlgorithmStep step;
  for (const auto& [to, bytes] : sends) AddSend(step, Rank{to}, {BufferRole::kInput, 0, bytes});
  return step;
}

AlgorithmStep Receives(std::vector<std::pair<int32_t, int64_t>> receives, bool combines = false) {
  AlgorithmStep step;
  for (const auto& [from, bytes] : receives) {
    const BufferRange to{BufferRole::kOutput, 0, bytes};
    AddReceive(step, Rank{from}, to, combines ? std::optional(to) : std::nullopt);
  }
  return step;
}

// Of ranks with these steps.
double TimeOf(const std::vector<std::vector<AlgorithmStep>>& ranks, const Network& network,
              Pieces pieces = {}, int64_t segment_bytes = int64_t{1} << 30) {
  const auto nodes = static_cast<int32_t>(ranks.size());
  const auto make = [&](Rank self) {
    return TransferSchedule{ranks[static_cast<size_t>(ToInt(self))], 0};
  };
  auto table = TableOf(make, Symmetry{nodes, {}}, nodes, nodes / network.racks, segment_bytes);
  EXPECT_TRUE(table.ok()) << table.status();
  return MicrosecondsOf(*table, network, nodes, pieces);
}

TEST(Simulation, AMessageTakesItsStartAndItsBytes) {
  EXPECT_DOUBLE_EQ(TimeOf({{Sends({{1, kKilobyte}})}, {Receives({{0, kKilobyte}})}}, kNetwork), 18);
}

TEST(Simulation, MessagesOfOneStepFollowEachOtherOutOfThePort) {
  EXPECT_DOUBLE_EQ(TimeOf({{Sends({{1, kKilobyte}, {2, kKilobyte}})},
                           {Receives({{0, kKilobyte}})},
                           {Receives({{0, kKilobyte}})}},
                          kNetwork),
                   2 + 8 + 10 + 8);
}

TEST(Simulation, SegmentsHaveAGapBetweenThem) {
  EXPECT_DOUBLE_EQ(
      TimeOf({{Sends({{1, kKilobyte}})}, {Receives({{0, kKilobyte}})}}, kNetwork, {}, 250),
      10 + 8 + 3 * 2);
}

TEST(Simulation, TwoThatSendToOneShareItsPort) {
  EXPECT_DOUBLE_EQ(TimeOf({{Sends({{2, kKilobyte}})},
                           {Sends({{2, kKilobyte}})},
                           {Receives({{0, kKilobyte}, {1, kKilobyte}})}},
                          kNetwork),
                   10 + 8 + 8);
}

TEST(Simulation, SlowSendersLeaveTheRestOfALineToOthers) {
  Network network = kNetwork;
  network.racks = 2;
  network.oversubscription = 1;  // an uplink is two ports
  const std::vector<std::vector<AlgorithmStep>> ranks = {{Sends({{2, kKilobyte}})},
                                                         {Sends({{3, kKilobyte}})},
                                                         {Receives({{0, kKilobyte}})},
                                                         {Receives({{1, kKilobyte}})}};
  EXPECT_NEAR(TimeOf(ranks, network), 18, 4);  // not 26: the second one's bytes come meanwhile
}

TEST(Simulation, CombinesWhileTheNextSegmentArrives) {
  Network network = kNetwork;
  network.gap_us = 0;
  network.reduce_gbyte = 0.25;  // 4 us a kilobyte
  const std::vector<std::vector<AlgorithmStep>> ranks = {
      {Sends({{1, 4 * kKilobyte}})}, {Receives({{0, 4 * kKilobyte}}, /*combines=*/true)}};
  EXPECT_DOUBLE_EQ(TimeOf(ranks, network, {}, kKilobyte), 10 + 32 + 4);
  network.reduce_gbyte = 0.1;  // 10 us, which is slower than they come
  EXPECT_DOUBLE_EQ(TimeOf(ranks, network, {}, kKilobyte), 10 + 8 + 40);
}

TEST(Simulation, AStepWaitsForTheOneBefore) {
  const auto both = [](int32_t other) {
    AlgorithmStep step = Sends({{other, kKilobyte}});
    AddReceive(step, Rank{other}, {BufferRole::kOutput, 0, kKilobyte});
    return std::vector<AlgorithmStep>{step, step};
  };
  EXPECT_DOUBLE_EQ(TimeOf({both(1), both(0)}, kNetwork), 2 * 18);
  // Of two pieces, one is on the line while the other waits for its start.
  EXPECT_DOUBLE_EQ(TimeOf({both(1), both(0)}, kNetwork, {2, 2}), 3 * 10 + 18);
}

TEST(Simulation, ManyPiecesGoOnAsTheFirstOnesDid) {
  const std::vector<std::vector<AlgorithmStep>> ranks = {{Sends({{1, kKilobyte}})},
                                                         {Receives({{0, kKilobyte}})}};
  EXPECT_DOUBLE_EQ(TimeOf(ranks, kNetwork, {1000, 4}), 1000 * 10 + 8);
}

TEST(Simulation, UplinksAreSharedByARack) {
  Network network = kNetwork;
  network.racks = 2;
  network.oversubscription = 4;  // 16 us a kilobyte
  const auto sends = [](int32_t to) {
    return std::vector<AlgorithmStep>{Sends({{to, kKilobyte}})};
  };
  const auto receives = [](int32_t from) {
    return std::vector<AlgorithmStep>{Receives({{from, kKilobyte}})};
  };
  EXPECT_DOUBLE_EQ(TimeOf({sends(2), sends(3), receives(0), receives(1)}, network), 10 + 2 * 16);
  EXPECT_DOUBLE_EQ(TimeOf({sends(1), receives(0), sends(3), receives(2)}, network), 18);
}

TEST(Simulation, RefusesSchedulesThatDoNotBelongTogether) {
  const auto make = [](Rank self) {
    TransferSchedule schedule;
    if (self == Rank{0}) AddStep(schedule, Sends({{1, 4}}));
    return schedule;
  };
  const auto table = TableOf(make, Symmetry{2, {}}, 2, 2, 1024);
  EXPECT_EQ(table.status().message(), "1 trains are sent, and 0 are waited for");
}

}  // namespace
}  // namespace coordd::model
