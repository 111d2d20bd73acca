// What the ranks make of each other's GPUs.
#include "worker/nccl/device_claim.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"
#include "worker/nccl/rdma_ports.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

DeviceClaim Claim(int32_t rank, std::string uuid, std::string host = "node1") {
  DeviceClaim claim;
  claim.rank = rank;
  claim.host = std::move(host);
  claim.uuid = std::move(uuid);
  claim.nccl = "2.28.9";
  return claim;
}

TEST(DeviceClaim, SurvivesItsWayThroughTheStore) {
  DeviceClaim claim = Claim(3, "GPU-1");
  claim.why_not = "line one\nline two";
  claim.rdma = true;
  const auto decoded = DecodeClaim(EncodeClaim(claim));
  ASSERT_THAT(decoded, IsOk());
  EXPECT_EQ(decoded->rank, 3);
  EXPECT_EQ(decoded->host, "node1");
  EXPECT_EQ(decoded->uuid, "GPU-1");
  EXPECT_EQ(decoded->nccl, "2.28.9");
  EXPECT_EQ(decoded->why_not, "line one line two");
  EXPECT_TRUE(decoded->rdma);
  claim.why_not = std::string(100'000, 'x');
  EXPECT_LE(EncodeClaim(claim).size(), kMaxClaimBytes);
  EXPECT_THAT(DecodeClaim("3\nnode1"), StatusIs(absl::StatusCode::kInternal, HasSubstr("2 lines")));
}

TEST(DeviceClaim, NcclCarriesWhatEveryRankHasItFor) {
  EXPECT_EQ(*DecideOnDevices({Claim(0, "GPU-1"), Claim(1, "GPU-2")}, {}),
            (DeviceDecision{true, ""}));
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

TEST(DeviceClaim, DecisionsAndRefusalsTravel) {
  for (const DeviceDecision& decision : {DeviceDecision{true, ""}, DeviceDecision{false, "why"}})
    EXPECT_EQ(*DecodeDecision(EncodeDecision(decision)), decision);
  const absl::Status refused = absl::FailedPreconditionError("rank 0 and rank 1");
  EXPECT_EQ(DecodeDecision(EncodeDecision(refused)).status(), refused);
  EXPECT_THAT(DecodeDecision("maybe"), StatusIs(absl::StatusCode::kInternal, HasSubstr("none")));
}

TEST(RdmaPorts, AreThoseThatAreActiveAndMayBeUsed) {
  const TempDirectory folder;
  const std::filesystem::path port =
      std::filesystem::path(folder.path()) / "mlx5_0" / "ports" / "1";
  EXPECT_FALSE(HasActiveRdmaPort({}, folder.path()));
  std::filesystem::create_directories(port);
  std::ofstream(port / "state") << "1: DOWN\n";
  EXPECT_FALSE(HasActiveRdmaPort({}, folder.path()));
  std::ofstream(port / "state") << "4: ACTIVE\n";
  EXPECT_TRUE(HasActiveRdmaPort({}, folder.path()));
  EXPECT_FALSE(HasActiveRdmaPort({{"NCCL_IB_DISABLE", "1"}}, folder.path()));
  EXPECT_FALSE(HasActiveRdmaPort({}, "/no/such/folder"));
}

}  // namespace
}  // namespace coordd
