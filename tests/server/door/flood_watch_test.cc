// Whose messages fill the memory, and how a connection is found again by gRPC's name of it.
#include "server/door/flood_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/door/read_bytes.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Backlog Of(int fd, uint64_t bytes) { return {.fd = fd, .cookie = 0, .peer = "", .bytes = bytes}; }

std::vector<int> FdsOf(const std::vector<Backlog>& all) {
  std::vector<int> fds;
  for (const Backlog& one : all) fds.push_back(one.fd);
  return fds;
}

TEST(FloodWatch, LooksWhenTheMemoryHasGrownByAnEighth) {
  FloodWatch watch(800);
  EXPECT_FALSE(watch.IsLookDue(5000));
  EXPECT_FALSE(watch.IsLookDue(5099));
  EXPECT_TRUE(watch.IsLookDue(5100));
  EXPECT_FALSE(watch.IsLookDue(5199));
  EXPECT_TRUE(watch.IsLookDue(5201));
}

TEST(FloodWatch, CountsFromTheFewestSinceTheLastLook) {
  FloodWatch watch(800);
  EXPECT_FALSE(watch.IsLookDue(5000));
  EXPECT_FALSE(watch.IsLookDue(1000));
  EXPECT_TRUE(watch.IsLookDue(1100));
}

TEST(FloodWatch, EndsTheLargestUntilTheOthersHaveRoom) {
  const FloodWatch watch(100);
  const std::vector<Backlog> all = {Of(1, 10), Of(2, 70), Of(3, 50), Of(4, 20)};
  EXPECT_THAT(FdsOf(watch.WhoEnds(all)), ElementsAre(2));
}

TEST(FloodWatch, EndsNobodyWhileTogetherTheyFit) {
  const FloodWatch watch(100);
  EXPECT_THAT(watch.WhoEnds({Of(1, 60), Of(2, 40)}), IsEmpty());
  EXPECT_THAT(watch.WhoEnds({}), IsEmpty());
}

TEST(ReadBytes, AreCountedByConnectionWhateverGrpcCallsIt) {
  ReadBytes read;
  read.Of("ipv4:10.0.0.1:4711").Add(1000);
  ReadBytes::Counter again = read.Of("ipv4:10.0.0.1:4711");
  again.Add(1);
  read.Of("ipv6:%5B::1%5D:80").Add(5);
  EXPECT_EQ(read.Total("10.0.0.1:4711"), 1001 + 2 * ReadBytes::kPerMessage);
  EXPECT_EQ(read.Total("[::1]:80"), 5 + ReadBytes::kPerMessage);
  EXPECT_EQ(read.Total("10.0.0.1:1"), 0);
}

TEST(ReadBytes, OfWhatIsGoneAreForgotten) {
  ReadBytes read;
  read.Of("ipv4:10.0.0.1:1").Add(1);
  read.Of("ipv4:10.0.0.1:2").Add(1);
  read.Keep({"10.0.0.1:2"});
  EXPECT_EQ(read.Total("10.0.0.1:1"), 0);
  EXPECT_NE(read.Total("10.0.0.1:2"), 0);
}

}  // namespace
}  // namespace coordd
