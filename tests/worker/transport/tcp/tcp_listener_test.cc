#include "worker/transport/tcp/tcp_listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <string>

#include "common/base/owned_fd.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

// Blocks until the other side has connected; a test's time at most.
TcpListener::Caller NextCaller(TcpListener& listener) {
  pollfd entry = {listener.socket(), POLLIN, 0};
  poll(&entry, 1, -1);
  return listener.Accept();
}

TEST(TcpListener, OpensWhereAConnectionOfAnEarlierOneStillWaits) {
  auto first = TcpListener::Open("127.0.0.1", std::nullopt);
  ASSERT_THAT(first, IsOk());
  const uint16_t port = first->address().port;
  int error = 0;
  OwnedFd stranger = BeginConnecting(first->address(), &error);
  ASSERT_TRUE(stranger.valid()) << error;
  TcpListener::Caller caller = NextCaller(*first);
  ASSERT_TRUE(caller.socket.valid());
  // Who ends a connection first keeps its port busy for a minute.
  caller.socket = OwnedFd();
  char byte = 0;
  pollfd entry = {stranger.get(), POLLIN, 0};
  poll(&entry, 1, -1);
  EXPECT_EQ(read(stranger.get(), &byte, 1), 0);
  stranger = OwnedFd();
  *first = TcpListener();
  EXPECT_THAT(TcpListener::Open("127.0.0.1", PortRange{port, port}), IsOk());
}

TEST(TcpListener, NamesARangeInWhichNoPortIsFree) {
  const auto first = TcpListener::Open("127.0.0.1", std::nullopt);
  ASSERT_THAT(first, IsOk());
  const uint16_t port = first->address().port;
  const auto second = TcpListener::Open("127.0.0.1", PortRange{port, port});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find(PortRange{port, port}.ToString()), std::string::npos)
      << second.status();
}

}  // namespace
}  // namespace coordd
