#include "common/launch/host_identity.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

TEST(HostIdentity, IsTheSameForTheWholeProcess) {
  EXPECT_EQ(ThisHost("").node_id, ThisHost("").node_id);
  EXPECT_FALSE(ThisHost("").node_id.empty());
  EXPECT_FALSE(ThisHost("").hostname.empty());
}

TEST(HostIdentity, TheHostnameHasNoDomain) {
  EXPECT_EQ(ThisHost("").hostname.find('.'), std::string::npos);
}

TEST(HostIdentity, TheGivenNodeIdReplacesWhatIsFoundOut) {
  EXPECT_EQ(ThisHost("node7").node_id, "node7");
  EXPECT_EQ(ThisHost("node7").hostname, ThisHost("").hostname);
}

// Two containers of one user may call him differently, and two users may have one name.
TEST(HostIdentity, AUserIsTheMachinesAndNotTheContainers) {
  const char* whole = "         0          0 4294967295\n";
  EXPECT_EQ(OuterUser(whole, 1000), 1000u);
  EXPECT_EQ(OuterUser("0 1000 1\n", 0), 1000u);
  EXPECT_EQ(OuterUser("1000 1000 1\n", 1000), 1000u);
  EXPECT_EQ(OuterUser("0 1000 1\n1 100000 65536\n", 33), 100032u);
  EXPECT_NE(OuterUser("0 100000 65536\n", 0), OuterUser("0 165536 65536\n", 0));
  // Nobody says: the number itself.
  EXPECT_EQ(OuterUser("", 7), 7u);
  EXPECT_EQ(OuterUser("0 1000 1\nnonsense\n1 2\n", 65534), 65534u);
}

}  // namespace
}  // namespace coordd
