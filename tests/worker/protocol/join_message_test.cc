#include "worker/protocol/join_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>

#include "common/net/own_address.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
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

struct Domains {
  int32_t first, domains, nodes_per_domain;
};

v1::CoordinatorMessage InDomains(std::initializer_list<std::initializer_list<Domains>> levels) {
  v1::CoordinatorMessage message = Membership({{.nodes = 4, .ranks_per_node = 2}});
  for (const std::initializer_list<Domains>& level : levels) {
    v1::TopologyLevel& told = *message.mutable_membership()->add_topology();
    for (const Domains& run : level) {
      v1::DomainRun& added = *told.add_runs();
      added.set_first(run.first);
      added.set_domains(run.domains);
      added.set_nodes_per_domain(run.nodes_per_domain);
    }
  }
  return message;
}

TEST(ParseMembership, TellsHowNodesLieInRacksAndAisles) {
  const auto told = ParseMembership(InDomains({{{0, 2, 2}}, {{0, 1, 2}, {1, 2, 1}}}));
  ASSERT_THAT(told, IsOk());
  EXPECT_THAT(told->layout.levels(), ElementsAre(ElementsAre(0, 0, 1, 1), ElementsAre(0, 0, 1, 2)));
  // Apart from each other.
  const auto apart = ParseMembership(InDomains({{{0, 2, 1}, {0, 2, 1}}}));
  ASSERT_THAT(apart, IsOk());
  EXPECT_THAT(apart->layout.levels(), ElementsAre(ElementsAre(0, 1, 0, 1)));
  const auto untold = ParseMembership(Membership({{.nodes = 4, .ranks_per_node = 2}}));
  ASSERT_THAT(untold, IsOk());
  EXPECT_TRUE(untold->layout.levels().empty());
}

TEST(ParseMembership, RefusesLevelsThatDoNotFit) {
  auto refused = [](const v1::CoordinatorMessage& message, const char* why) {
    EXPECT_THAT(ParseMembership(message), StatusIs(absl::StatusCode::kInternal, HasSubstr(why)));
  };
  refused(InDomains({{{0, 2, 1}}}), "topology level 0 has 2 nodes, expected 4");
  refused(InDomains({{{0, 2, 2}}, {{0, 3, 2}}}), "topology level 1 has more than the 4 nodes");
  refused(InDomains({{{0, 1 << 30, 1 << 30}}}), "has more than the 4 nodes");
  refused(InDomains({{{0, 0, 4}}}), "has an empty run of domains");
  refused(InDomains({{{0, 4, -1}}}), "has an empty run of domains");
  refused(InDomains({{{1, 2, 2}}}), "begins domain 1 behind 0 others");
  refused(InDomains({{{-1, 2, 2}}}), "begins domain -1 behind 0 others");
  refused(InDomains({{{0, 2, 2}}, {{0, 1, 1}, {1, 1, 2}, {2, 1, 1}}}),
          "topology level 1 cuts across the domains of level 0");
  refused(InDomains({{{0, 2, 2}}, {{0, 2, 1}, {0, 2, 1}}}), "cuts across the domains of level 0");
  refused(InDomains({{}}), "has 0 nodes, expected 4");
  const std::initializer_list<Domains> kLevel = {{0, 2, 2}};
  refused(InDomains({kLevel, kLevel, kLevel, kLevel, kLevel, kLevel, kLevel, kLevel, kLevel}),
          "9 topology levels of 4 nodes, expected at most 8 of 131072");
  v1::CoordinatorMessage many = InDomains({kLevel});
  for (int run = 0; run < 1024; ++run)
    *many.mutable_membership()->mutable_topology(0)->add_runs() =
        many.membership().topology(0).runs(0);
  refused(many, "has 1025 runs, expected at most 1024");
  // What would take gigabytes.
  v1::CoordinatorMessage large = Membership({{.nodes = 1 << 20, .ranks_per_node = 1}});
  large.mutable_membership()->add_topology();
  refused(large, "1 topology levels of 1048576 nodes");
}

TEST(ParseMembership, RefusesMoreRanksThanAnyJobHas) {
  const auto parsed = [](int32_t nodes, int32_t each) {
    return ParseMembership(Membership({{.nodes = nodes, .ranks_per_node = each}}), {}).status();
  };
  EXPECT_TRUE(parsed(1 << 17, 8).ok());
  EXPECT_THAT(parsed((1 << 17) + 1, 8).message(),
              HasSubstr("of 1048584 ranks, expected at most 1048576"));
  EXPECT_THAT(parsed(1, std::numeric_limits<int32_t>::max()).message(),
              HasSubstr("of 2147483647 ranks, expected at most 1048576"));
}

}  // namespace
}  // namespace coordd
