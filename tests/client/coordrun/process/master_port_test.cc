#include "client/coordrun/process/master_port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

bool Bind(const OwnedFd& fd, uint16_t port, bool reuse) {
  const int on = reuse ? 1 : 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  return bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

OwnedFd Socket() { return OwnedFd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

TEST(MasterPort, IsThereForWhoAsksForItByNumberAsTorchDoes) {
  const auto port = MasterPort::Reserve("");
  ASSERT_THAT(port, IsOk());
  EXPECT_GT(port->port(), 0);
  const OwnedFd store = Socket();
  ASSERT_TRUE(Bind(store, port->port(), /*reuse=*/true));
  EXPECT_EQ(listen(store.get(), 8), 0);
}

TEST(MasterPort, IsGivenToNobodyElse) {
  const auto port = MasterPort::Reserve("");
  ASSERT_THAT(port, IsOk());
  EXPECT_FALSE(Bind(Socket(), port->port(), /*reuse=*/false));
  std::set<uint16_t> seen = {port->port()};
  std::vector<MasterPort> others;
  for (int i = 0; i < 50; ++i) {
    auto other = MasterPort::Reserve("");
    ASSERT_THAT(other, IsOk());
    EXPECT_TRUE(seen.insert(other->port()).second) << "two runs share a port";
    others.push_back(*std::move(other));
  }
}

TEST(MasterPort, IsOneOfTheRangeFromItsEnd) {
  // Somewhere in the range that is free here: other tests run at the same time.
  const auto free = MasterPort::Reserve("");
  ASSERT_THAT(free, IsOk());
  const std::string one = absl::StrCat(free->port(), "-", free->port());
  EXPECT_THAT(MasterPort::Reserve(one),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("none of " + one + " is free")));
  const auto in_range = MasterPort::Reserve("23200-23299");
  ASSERT_THAT(in_range, IsOk());
  EXPECT_GE(in_range->port(), 23200);
  EXPECT_LE(in_range->port(), 23299);
  const auto next = MasterPort::Reserve("23200-23299");
  ASSERT_THAT(next, IsOk());
  EXPECT_LT(next->port(), in_range->port());
}

}  // namespace
}  // namespace coordd
