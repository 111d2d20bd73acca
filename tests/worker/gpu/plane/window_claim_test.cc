#include "worker/gpu/plane/window_claim.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace coordd {
namespace {

std::string WhyNot(const std::vector<WindowClaim>& claims, int32_t size = 0) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(claims.data());
  return WhyNoWindow({bytes, claims.size() * sizeof(WindowClaim)},
                     size == 0 ? static_cast<int32_t>(claims.size()) : size);
}

TEST(WindowClaimTest, EqualPartsOfEqualAllocationsMakeAWindow) {
  EXPECT_EQ(WhyNot({{64, 64, 7}, {64, 64, 7}, {64, 64, 7}}), "");
  EXPECT_EQ(WhyNot({{48, 64, 7}, {48, 64, 7}}), "");
  EXPECT_EQ(WhyNot({{64, 64, 0}}), "");
}

TEST(WindowClaimTest, TheFirstRankThatDiffersIsNamedWithWhatItGave) {
  EXPECT_EQ(WhyNot({{64, 64, 7}, {64, 64, 7}, {32, 64, 7}, {16, 64, 7}}),
            "rank 2 gave 32 of 64 bytes of coordd_alloc_device, rank 0 64 of 64 bytes of "
            "coordd_alloc_device");
  EXPECT_EQ(WhyNot({{64, 64, 7}, {64, 0, 7}}),
            "rank 1 gave 64 bytes that do not begin memory of coordd_alloc_device, rank 0 64 of 64 "
            "bytes of coordd_alloc_device");
  EXPECT_EQ(WhyNot({{64, 128, 7}, {64, 64, 7}}),
            "rank 1 gave 64 of 64 bytes of coordd_alloc_device, rank 0 64 of 128 bytes of "
            "coordd_alloc_device");
}

TEST(WindowClaimTest, WhereNoneHasSuchMemoryThatIsSaidOfRank0) {
  EXPECT_EQ(WhyNot({{64, 0, 7}, {64, 0, 7}}),
            "rank 0 gave 64 bytes that do not begin memory of coordd_alloc_device");
  // More than there is: not within one allocation.
  EXPECT_EQ(WhyNot({{128, 64, 7}, {128, 64, 7}}),
            "rank 0 gave 128 of 64 bytes of coordd_alloc_device");
}

TEST(WindowClaimTest, WindowsThatNotAllHaveAreInTheWay) {
  EXPECT_EQ(WhyNot({{64, 64, 7}, {64, 64, 8}}), "rank 1 has other windows registered than rank 0");
}

TEST(WindowClaimTest, ARankThatHasJoinedSaysNothing) {
  EXPECT_EQ(WhyNot({{64, 64, 7}, {64, 64, 7}}, 3), "1 rank has called coordd_join");
  EXPECT_EQ(WhyNot({}, 2), "2 ranks have called coordd_join");
}

TEST(WindowClaimTest, ADigestIsOfNumbersInTheirOrder) {
  EXPECT_EQ(DigestOf({1, 2}), DigestOf({1, 2}));
  EXPECT_NE(DigestOf({1, 2}), DigestOf({2, 1}));
  EXPECT_NE(DigestOf({1, 2}), DigestOf({1}));
  EXPECT_NE(DigestOf({0}), DigestOf({}));
}

}  // namespace
}  // namespace coordd
