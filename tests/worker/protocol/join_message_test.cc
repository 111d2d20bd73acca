#include "worker/protocol/join_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>

#include "common/net/own_address.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

struct Run {
  int32_t nodes, ranks_per_node;
};

v1::CoordinatorMessage Membership(std::initializer_list<Run> runs) {
  v1::CoordinatorMessage message;
  message.set_generation(3);
  v1::Membership& membership = *message.mutable_membership();
  membership.set_local_size(1);
  membership.set_cross_size(1);
  for (const Run& run : runs) {
    v1::NodeRun& added = *membership.add_nodes();
    added.set_nodes(run.nodes);
    added.set_ranks_per_node(run.ranks_per_node);
    membership.set_size(membership.size() + run.nodes * run.ranks_per_node);
  }
  return message;
}

TEST(ParseMembership, TellsHowManyNodesThereAreAndWhetherTheyHaveAsManyRanks) {
  const auto even = ParseMembership(Membership({{.nodes = 3, .ranks_per_node = 4}}));
  ASSERT_THAT(even, IsOk());
  EXPECT_EQ(even->placement.nodes, 3);
  EXPECT_TRUE(even->placement.homogeneous);

  const auto uneven = ParseMembership(Membership({{.nodes = 1, .ranks_per_node = 1},
                                                  {.nodes = 1, .ranks_per_node = 2},
                                                  {.nodes = 1, .ranks_per_node = 3}}));
  ASSERT_THAT(uneven, IsOk());
  EXPECT_EQ(uneven->placement.nodes, 3);
  EXPECT_FALSE(uneven->placement.homogeneous);
}

TEST(HostAddress, IsThatTowardsCoorddOrElseThatOfTheWayOut) {
  const HostPort here = {"127.0.0.1", 29650};
  EXPECT_EQ(HostAddress(here, /*has_other_nodes=*/false), "127.0.0.1");
  EXPECT_EQ(HostAddress(here, /*has_other_nodes=*/true),
            LocalAddressTowards({"192.0.2.1", 9}).value_or("127.0.0.1"));
  EXPECT_EQ(HostAddress({"no-such-host.invalid", 1}, /*has_other_nodes=*/false), LoopbackAddress());
}

TEST(ParseMembership, RefusesNodesThatDoNotFitTheNumberOfRanks) {
  v1::CoordinatorMessage message = Membership({{.nodes = 2, .ranks_per_node = 2}});
  message.mutable_membership()->set_size(5);
  EXPECT_THAT(ParseMembership(message),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 0 of 5")));
}

}  // namespace
}  // namespace coordd
