#include "common/net/own_address.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace coordd {
namespace {

TEST(OwnAddress, AWildcardIsReachedOnLoopback) {
  EXPECT_EQ(ReachableHere("0.0.0.0"), "127.0.0.1");
  EXPECT_EQ(ReachableHere("::"), "::1");
  EXPECT_EQ(ReachableHere("node1"), "node1");
  EXPECT_TRUE(IsLoopback(LoopbackAddress()));
}

TEST(OwnAddress, SaysWhyNobodyCanListenThere) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ(TryToListen({"127.0.0.1", ntohs(address.sin_port)}).message(), "the port is in use");
  close(fd);
  EXPECT_EQ(TryToListen({"192.0.2.1", 0}).message(), "the address is not this machine's");
  EXPECT_TRUE(TryToListen({"127.0.0.1", 0}).ok());
}

}  // namespace
}  // namespace coordd
