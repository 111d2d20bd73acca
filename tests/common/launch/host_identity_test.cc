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

}  // namespace
}  // namespace coordd
