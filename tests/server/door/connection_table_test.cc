#include "server/door/connection_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace coordd {
namespace {

ConnectionTable::Client ClientAt(const std::string& peer) {
  auto caller = std::make_shared<Caller>();
  caller->peer = peer;
  return {.fd = 7, .cookie = 42, .peer = peer, .caller = std::shared_ptr<const Caller>(caller)};
}

TEST(ConnectionTable, KnowsWhoCallsByTheNameThatGrpcHas) {
  ConnectionTable table;
  table.Add("unix-abstract:coordd-1", ClientAt("10.0.0.1:1"));
  table.Add("unix-abstract:coordd-2", ClientAt("10.0.0.2:2"));
  const auto caller = table.CallerAt("unix-abstract:coordd-2");
  ASSERT_TRUE(caller.ok());
  EXPECT_EQ((*caller)->peer, "10.0.0.2:2");
  ASSERT_EQ(table.All().size(), 2u);
  EXPECT_EQ(table.All()[0].cookie, 42u);
}

// Nobody is an operator because he is not known.
TEST(ConnectionTable, KnowsNobodyElse) {
  ConnectionTable table;
  table.Add("unix-abstract:coordd-1", ClientAt("10.0.0.1:1"));
  for (const char* other : {"", "unix:", "ipv4:10.0.0.1:1", "unix-abstract:coordd-"})
    EXPECT_EQ(table.CallerAt(other).status().code(), absl::StatusCode::kUnavailable) << other;
  table.Remove("unix-abstract:coordd-1");
  EXPECT_FALSE(table.CallerAt("unix-abstract:coordd-1").ok());
  EXPECT_TRUE(table.All().empty());
}

TEST(ConnectionTable, TellsWhyACallerIsRefused) {
  ConnectionTable table;
  ConnectionTable::Client doubtful = ClientAt("10.0.0.1:1");
  doubtful.caller = absl::PermissionDeniedError("two roles");
  table.Add("a", std::move(doubtful));
  EXPECT_EQ(table.CallerAt("a").status(), absl::PermissionDeniedError("two roles"));
}

}  // namespace
}  // namespace coordd
