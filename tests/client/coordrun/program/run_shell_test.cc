// What a run watches besides its workers: its coordd, and the hosts that come and go.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <string>
#include <vector>

#include "client/coordrun/program/coordinator_keeper.h"
#include "client/coordrun/program/host_watch.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

TEST(CoordinatorKeeper, OfANamedCoorddKnowsTheAddressAlone) {
  RunOptions options;
  options.coordinator = "127.0.0.1:1";  // where nothing listens
  options.token_file = "/nonexistent/token";
  const Environment environment;
  const std::vector<pid_t> pids;
  Output output(options, /*colour=*/false);
  CoordinatorKeeper keeper(options, environment, Clock::Real(), output, pids);
  RunPlan plan;
  plan.np = 1;
  ASSERT_TRUE(keeper.SetUp(plan, "/nonexistent").ok());
  EXPECT_EQ(keeper.rendezvous().address, "127.0.0.1:1");
  EXPECT_FALSE(keeper.is_own());
  EXPECT_FALSE(keeper.has_ended());
  std::vector<pollfd> fds;
  keeper.Await(fds);
  ASSERT_EQ(fds.size(), CoordinatorKeeper::kEntries);
  for (const pollfd& entry : fds) EXPECT_LT(entry.fd, 0);
  EXPECT_FALSE(keeper.Handle(fds, /*needed=*/true).has_value());
  EXPECT_TRUE(keeper.CheckSpeaks().ok()) << "it may be on its way up";
}

TEST(HostWatch, HostsOfAPlanDoNotChange) {
  const RunOptions options;
  HostWatch hosts(options);
  EXPECT_FALSE(hosts.change());
  EXPECT_EQ(hosts.NextDeadline(), absl::InfiniteFuture());
  std::vector<pollfd> fds;
  hosts.Await(fds);
  EXPECT_TRUE(fds.empty());
  EXPECT_FALSE(hosts.Handle({}, kStart).has_value());
}

TEST(HostWatch, ThePlannedHostsHaveTheFirstSlots) {
  RunOptions options;
  options.discovery_script = "./hosts";
  options.min_np = 1;
  RunPlan plan;
  plan.hosts = {{.host = "b", .count = 1}, {.host = "a", .count = 2}};
  HostWatch hosts(options);
  hosts.Begin(plan, {});
  EXPECT_TRUE(hosts.change());
  ASSERT_EQ(hosts.slots().slots().size(), 3u);
  const HostRanks place = hosts.PlaceOf(2);
  EXPECT_EQ(place.host, "a");
  EXPECT_EQ(place.first_rank, 2);
  EXPECT_EQ(place.first_local, 1);
  EXPECT_EQ(place.local_size, 2);
  EXPECT_TRUE(hosts.Judge(std::vector<HostSlots>{{.host = "a", .slots = 2}}, kStart).take);
  EXPECT_FALSE(hosts.Judge(absl::UnavailableError("the script failed"), kStart).take);
}

}  // namespace
}  // namespace coordd
