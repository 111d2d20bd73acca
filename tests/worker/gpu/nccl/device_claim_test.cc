// What the ranks make of each other's GPUs.
#include "worker/gpu/nccl/device_claim.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"
#include "worker/gpu/nccl/nccl_route.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

DeviceClaim Claim(int32_t rank, std::string uuid, std::string host = "node1") {
  DeviceClaim claim;
  claim.rank = rank;
  claim.host = claim.machine = std::move(host);
  claim.uuid = std::move(uuid);
  claim.nccl = "2.28.9";
  return claim;
}

TEST(DeviceClaim, SurvivesItsWayThroughTheStore) {
  DeviceClaim claim = Claim(3, "GPU-1");
  claim.why_not = "line one\nline two";
  claim.rdma = claim.gpu_direct = claim.float8 = true;
  claim.window_bytes = 1 << 27;
  claim.machine = "id 7";
  claim.algorithm = GpuAlgorithm::kHierarchical;
  claim.rdma_for_host = true;
  claim.neighbours = {{"GPU-2", true}, {"GPU-3", false}};
  const auto decoded = DecodeClaim(EncodeClaim(claim));
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->rank, 3);
  EXPECT_EQ(decoded->host, "node1");
  EXPECT_EQ(decoded->uuid, "GPU-1");
  EXPECT_EQ(decoded->nccl, "2.28.9");
  EXPECT_EQ(decoded->why_not, "line one line two");
  EXPECT_TRUE(decoded->rdma);
  EXPECT_TRUE(decoded->gpu_direct);
  EXPECT_TRUE(decoded->float8);
  EXPECT_EQ(decoded->window_bytes, 1 << 27);
  EXPECT_EQ(decoded->machine, "id 7");
  EXPECT_EQ(decoded->algorithm, GpuAlgorithm::kHierarchical);
  EXPECT_TRUE(decoded->rdma_for_host);
  EXPECT_EQ(decoded->neighbours, claim.neighbours);
  for (std::string* field : {&claim.host, &claim.machine, &claim.uuid, &claim.nccl})
    *field = std::string(100'000, 'x');
  claim.neighbours.assign(1000, {std::string(1000, 'x'), true});
  claim.why_not = std::string(100'000, 'x');
  EXPECT_LE(EncodeClaim(claim).size(), kMaxClaimBytes);
  EXPECT_THAT(DecodeClaim("3\nnode1"), StatusIs(absl::StatusCode::kInternal, HasSubstr("2 lines")));
}

TEST(DeviceClaim, NcclCarriesWhatEveryRankHasItFor) {
  EXPECT_EQ(*DecideOnDevices({Claim(0, "GPU-1"), Claim(1, "GPU-2")}, {}),
            (DeviceDecision{true, "", NodeLinks::kUnknown}));
  DeviceClaim without = Claim(2, "GPU-3", "node7");
  without.nccl = "";
  without.why_not = "libnccl.so.2: cannot open";
  const auto decision = DecideOnDevices({Claim(0, "GPU-1"), without}, {});
  ASSERT_THAT(decision, IsOk());
  EXPECT_FALSE(decision->nccl);
  EXPECT_EQ(decision->why_not, "rank 2 (host node7) has no NCCL: libnccl.so.2: cannot open");
}

TEST(DeviceClaim, TwoRanksOnOneGpuAreNamed) {
  const std::vector<DeviceClaim> claims = {Claim(0, "GPU-1"), Claim(5, "GPU-1")};
  EXPECT_THAT(DecideOnDevices(claims, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 (host node1) and rank 5 (host node1)"),
                             HasSubstr("both use GPU GPU-1"))));
  EXPECT_THAT(DecideOnDevices(claims, {}).status().message(),
              HasSubstr("NCCL 2.28.9 lets no two ranks share one, under MPS either; 2.30 does"));
  std::vector<DeviceClaim> later = claims;
  for (DeviceClaim& claim : later) claim.nccl = "2.30.7";
  EXPECT_THAT(DecideOnDevices(later, {}).status().message(),
              AllOf(HasSubstr("NCCL_MULTI_RANK_GPU_ENABLE=1"), HasSubstr("without MPS")));
  DeviceRules shared;
  shared.allow_shared_gpu = true;
  EXPECT_TRUE(DecideOnDevices(claims, shared)->nccl);
}

TEST(DeviceClaim, MixedVersionsAreNamed) {
  DeviceClaim other = Claim(1, "GPU-2");
  other.nccl = "2.18.5";
  EXPECT_THAT(DecideOnDevices({Claim(0, "GPU-1"), other}, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0"), HasSubstr("2.28.9"), HasSubstr("rank 1"),
                             HasSubstr("2.18.5"))));
}

TEST(DeviceClaim, RdmaThatIsRequiredIsMissedBetweenHostsOnly) {
  DeviceRules rules;
  rules.require_rdma = true;
  DeviceClaim with = Claim(0, "GPU-1");
  with.rdma = true;
  EXPECT_THAT(DecideOnDevices({with, Claim(1, "GPU-2")}, rules), IsOk());
  EXPECT_THAT(DecideOnDevices({with, Claim(1, "GPU-2", "node2")}, rules),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 1 (host node2)"), HasSubstr("RDMA"))));
}

DeviceDecision Shrinking(std::vector<int32_t> excluded, int64_t of) {
  DeviceDecision decision{true, ""};
  decision.excluded = std::move(excluded);
  decision.shrinks_of = of;
  return decision;
}

TEST(DeviceClaim, DecisionsAndRefusalsTravel) {
  for (const DeviceDecision& decision :
       {DeviceDecision{true, ""}, DeviceDecision{false, "why"},
        DeviceDecision{true, "", NodeLinks::kNvLink}, DeviceDecision{true, "", NodeLinks::kUnknown},
        DeviceDecision{true, "", NodeLinks::kSomeNvLink, true, true, true, true, true},
        DeviceDecision{true, "", NodeLinks::kNvLink, true, false, false, false, false, 8},
        DeviceDecision{true, "", NodeLinks::kNvLink, true, false, false, false, false, 0,
                       "rdma of rank 3 flat, since hierarchical-of-4"},
        Shrinking({1, 5}, 7)})
    EXPECT_EQ(*DecodeDecision(EncodeDecision(decision)), decision);
  const absl::Status refused = absl::FailedPreconditionError("rank 0 and rank 1");
  EXPECT_EQ(DecodeDecision(EncodeDecision(refused)).status(), refused);
  EXPECT_THAT(DecodeDecision("maybe"), StatusIs(absl::StatusCode::kInternal, HasSubstr("none")));
}

DeviceClaim Kept(int32_t rank, KeptClaim kept) {
  DeviceClaim claim = Claim(rank, "GPU-" + std::to_string(rank));
  claim.kept = kept;
  return claim;
}

TEST(DeviceClaim, SurvivorsShrinkWhatAllOfThemHave) {
  EXPECT_EQ(DecodeClaim(EncodeClaim(Kept(0, {7, 3, 4, 12})))->kept, (KeptClaim{7, 3, 4, 12}));
  const std::vector<DeviceClaim> claims = {Kept(0, {7, 0, 6, 12}), Kept(1, {7, 2, 6, 12}),
                                           Kept(2, {7, 3, 6, 12})};
  const auto decision = DecideOnDevices(claims, {});
  EXPECT_THAT(decision->excluded, testing::ElementsAre(1, 4, 5));
  EXPECT_EQ(decision->shrinks_of, 7);
}

TEST(DeviceClaim, WhereOneRankHasItNotAllMakeANewCommunicator) {
  const KeptClaim first{7, 0, 6, 12};
  auto shrinks = [&](DeviceClaim second) {
    return !DecideOnDevices({Kept(0, first), std::move(second)}, {})->excluded.empty();
  };
  EXPECT_TRUE(shrinks(Kept(1, {7, 1, 6, 12})));
  EXPECT_FALSE(shrinks(Claim(1, "GPU-1")));       // a newcomer, or busy when it ended
  EXPECT_FALSE(shrinks(Kept(1, {6, 1, 6, 12})));  // of another generation
  EXPECT_FALSE(shrinks(Kept(1, {7, 1, 5, 12})));  // of another size
  EXPECT_FALSE(shrinks(Kept(1, {7, 1, 6, 11})));  // which one batch has not reached
  EXPECT_FALSE(shrinks(Kept(1, {7, 0, 6, 12})));  // in another order
  EXPECT_FALSE(shrinks(Kept(1, {7, 6, 6, 12})));  // which it cannot have
  EXPECT_FALSE(shrinks(Kept(1, {7, 100, 101, 12})));
  // Nobody has gone; nobody else is left.
  EXPECT_TRUE(
      DecideOnDevices({Kept(0, {7, 0, 2, 1}), Kept(1, {7, 1, 2, 1})}, {})->excluded.empty());
  EXPECT_TRUE(DecideOnDevices({Kept(0, {7, 0, 2, 1})}, {})->excluded.empty());
  // More than a decision's text has room for.
  const int32_t last = static_cast<int32_t>(kMaxExcluded) + 2;
  EXPECT_TRUE(DecideOnDevices({Kept(0, {7, 0, last + 1, 1}), Kept(1, {7, last, last + 1, 1})}, {})
                  ->excluded.empty());
}

TEST(DeviceClaim, Float8IsReducedWhereEveryRankCan) {
  DeviceClaim hopper = Claim(0, "GPU-1"), ampere = Claim(1, "GPU-2");
  hopper.float8 = true;
  EXPECT_TRUE(DecideOnDevices({hopper}, {})->float8);
  const auto mixed = DecideOnDevices({hopper, ampere}, {});
  EXPECT_TRUE(mixed->nccl);
  EXPECT_FALSE(mixed->float8);
}

TEST(DeviceClaim, WindowsAreMadeByAllInOneSizeOrByNobody) {
  DeviceClaim first = Claim(0, "GPU-1"), second = Claim(1, "GPU-2");
  EXPECT_FALSE(DecideOnDevices({first, second}, {})->windows);
  first.window_bytes = 4096;
  EXPECT_FALSE(DecideOnDevices({first, second}, {})->windows);
  second.window_bytes = 8192;
  EXPECT_FALSE(DecideOnDevices({first, second}, {})->windows);
  second.window_bytes = 4096;
  EXPECT_TRUE(DecideOnDevices({first, second}, {})->windows);
}

TEST(DeviceClaim, MemoryIsRegisteredByAllRanksOrNone) {
  DeviceClaim first = Claim(0, "GPU-1"), second = Claim(1, "GPU-2");
  first.registers = true;
  EXPECT_FALSE(DecideOnDevices({first, second}, {})->registers);
  second.registers = true;
  EXPECT_TRUE(DecodeClaim(EncodeClaim(second))->registers);
  const auto decision = DecideOnDevices({first, second}, {});
  EXPECT_TRUE(decision->registers);
  EXPECT_EQ(*DecodeDecision(EncodeDecision(decision)), *decision);
}

TEST(DeviceClaim, OneGpuWithMulticastIsEnoughForASwitchThatReduces) {
  DeviceClaim first = Claim(0, "GPU-1"), second = Claim(1, "GPU-2");
  EXPECT_FALSE(DecideOnDevices({first, second}, {})->multicast);
  second.multicast = true;
  EXPECT_TRUE(DecodeClaim(EncodeClaim(second))->multicast);
  const auto decision = DecideOnDevices({first, second}, {});
  EXPECT_TRUE(decision->multicast);
  EXPECT_EQ(*DecodeDecision(EncodeDecision(decision)), *decision);
}

TEST(DeviceClaim, CommunicatorsAreDirectWhereAllRanksSaySoAndMakeNoWindows) {
  DeviceClaim first = Claim(0, "GPU-1"), second = Claim(1, "GPU-2");
  EXPECT_FALSE(DecideOnDevices({first, second}, {})->direct);
  first.direct = true;
  EXPECT_FALSE(DecideOnDevices({first, second}, {})->direct);
  second.direct = true;
  EXPECT_TRUE(DecodeClaim(EncodeClaim(second))->direct);
  const auto both = DecideOnDevices({first, second}, {});
  EXPECT_TRUE(both->direct);
  EXPECT_EQ(*DecodeDecision(EncodeDecision(both)), *both);
  first.window_bytes = second.window_bytes = 4096;
  EXPECT_FALSE(DecideOnDevices({first, second}, {})->direct);
}

TEST(DeviceClaim, WhatNcclCarriesFollowsTheDecision) {
  TensorSpec spec;
  spec.memory = MemoryKind::kCuda;
  spec.kind = CollectiveKind::kAllreduce;
  spec.op = ReduceOp::kSum;
  spec.dtype = DataType::kFloat8E4m3fn;
  DeviceDecision host, old, hopper;
  old.nccl = hopper.nccl = hopper.float8 = true;
  EXPECT_FALSE(CarriedByNccl(spec, host));
  EXPECT_FALSE(CarriedByNccl(spec, old));
  EXPECT_TRUE(CarriedByNccl(spec, hopper));
  // What only moves is bytes.
  spec.kind = CollectiveKind::kBroadcast;
  EXPECT_TRUE(CarriedByNccl(spec, old));
  spec.kind = CollectiveKind::kAllreduce;
  spec.dtype = DataType::kFloat32;
  EXPECT_TRUE(CarriedByNccl(spec, old));
}

DeviceClaim Seeing(DeviceClaim claim, std::vector<DeviceClaim::Neighbour> neighbours) {
  claim.neighbours = std::move(neighbours);
  return claim;
}

TEST(DeviceClaim, SaysWhatLiesBetweenTheRanks) {
  const DeviceClaim alone = Claim(0, "GPU-1");
  EXPECT_EQ(DecideOnDevices({alone}, {})->links, NodeLinks::kNone);
  const DeviceClaim elsewhere = Claim(2, "GPU-1b", "node2");
  EXPECT_EQ(DecideOnDevices({alone, elsewhere}, {})->links, NodeLinks::kNone);
  EXPECT_TRUE(DecideOnDevices({alone, elsewhere}, {})->several_machines);

  const DeviceClaim first = Seeing(alone, {{"GPU-2", true}, {"GPU-3", false}});
  const DeviceClaim second = Seeing(Claim(1, "GPU-2"), {{"GPU-1", true}, {"GPU-3", false}});
  const DeviceClaim blind = Claim(2, "GPU-3");
  EXPECT_EQ(DecideOnDevices({first, second}, {})->links, NodeLinks::kNvLink);
  EXPECT_FALSE(DecideOnDevices({first, second}, {})->several_machines);
  // One of the two sees the other.
  EXPECT_EQ(DecideOnDevices({first, blind}, {})->links, NodeLinks::kNoNvLink);
  EXPECT_EQ(DecideOnDevices({first, second, blind}, {})->links, NodeLinks::kSomeNvLink);
  EXPECT_EQ(DecideOnDevices({alone, blind}, {})->links, NodeLinks::kUnknown);
}

TEST(DeviceClaim, WhatIsBetweenMachinesIsWhatAllHave) {
  DeviceClaim with = Claim(0, "GPU-1"), without = Claim(1, "GPU-2", "node2");
  with.rdma = with.gpu_direct = without.rdma = true;
  EXPECT_TRUE(DecideOnDevices({with, without}, {})->rdma);
  EXPECT_FALSE(DecideOnDevices({with, without}, {})->gpu_direct);
  without.rdma = false;
  EXPECT_FALSE(DecideOnDevices({with, without}, {})->rdma);
}

// Of each name one rank on the machine of that name; in rank order.
std::vector<DeviceClaim> On(const std::vector<std::string>& machines, GpuAlgorithm algorithm) {
  std::vector<DeviceClaim> claims;
  for (const std::string& machine : machines) {
    const auto rank = static_cast<int32_t>(claims.size());
    claims.push_back(Claim(rank, "GPU-" + std::to_string(rank), machine));
    claims.back().algorithm = algorithm;
  }
  return claims;
}

TEST(DeviceClaim, AHierarchyNeedsEqualNodesOfSeveralRanks) {
  constexpr GpuAlgorithm kHierarchical = GpuAlgorithm::kHierarchical;
  EXPECT_EQ(DecideOnDevices(On({"a", "a", "b", "b"}, kHierarchical), {})->ranks_per_node, 2);
  EXPECT_EQ(DecideOnDevices(On({"a", "a", "a", "c", "c", "c"}, kHierarchical), {})->ranks_per_node,
            3);
  auto why_flat = [](const std::vector<std::string>& machines) {
    const auto decision = DecideOnDevices(On(machines, GpuAlgorithm::kHierarchical), {});
    EXPECT_EQ(decision->ranks_per_node, 0);
    return decision->why_flat;
  };
  EXPECT_EQ(why_flat({"a", "a"}), "all ranks are on one machine");
  EXPECT_EQ(why_flat({"a", "b", "c"}), "each machine has one of the ranks");
  EXPECT_EQ(why_flat({"a", "a", "b"}),
            "the machine of rank 0 (host a) has 2 of the ranks and that of rank 2 (host b) has 1");
  EXPECT_EQ(why_flat({"a", "b", "a", "b"}),
            "rank 2 (host a) does not follow the other ranks of its machine");
  DeviceRules no_lane;
  no_lane.exchanges = false;
  EXPECT_EQ(DecideOnDevices(On({"a", "a", "b", "b"}, kHierarchical), no_lane)->why_flat,
            "the number of the process set is too large");
}

TEST(DeviceClaim, AutoTakesTheHierarchyWhereOnlyTheHostHasRdma) {
  std::vector<DeviceClaim> claims = On({"a", "a", "b", "b"}, GpuAlgorithm::kAuto);
  EXPECT_EQ(DecideOnDevices(claims, {})->ranks_per_node, 0);
  for (DeviceClaim& claim : claims) claim.rdma_for_host = true;
  EXPECT_EQ(DecideOnDevices(claims, {})->ranks_per_node, 2);
  claims[2].rdma_for_host = false;
  EXPECT_EQ(DecideOnDevices(claims, {})->ranks_per_node, 0);
  EXPECT_EQ(DecideOnDevices(claims, {})->why_flat, "");  // nobody has asked for it
  std::vector<DeviceClaim> flat = On({"a", "a", "b", "b"}, GpuAlgorithm::kFlat);
  for (DeviceClaim& claim : flat) claim.rdma_for_host = true;
  EXPECT_EQ(DecideOnDevices(flat, {})->ranks_per_node, 0);
}

TEST(DeviceClaim, TwoAlgorithmsAreNamed) {
  std::vector<DeviceClaim> claims = On({"a", "a", "b", "b"}, GpuAlgorithm::kFlat);
  claims[3].algorithm = GpuAlgorithm::kHierarchical;
  EXPECT_THAT(DecideOnDevices(claims, {}),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 0 (host a) has COORDD_GPU_ALGORITHM flat"),
                             HasSubstr("rank 3 (host b) has hierarchical"))));
}

}  // namespace
}  // namespace coordd
