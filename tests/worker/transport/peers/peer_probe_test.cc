#include "worker/transport/peers/peer_probe.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "common/net/address.h"

namespace coordd {
namespace {

// The answer of loopback's kernel, against hangs for a minute at most.
PeerProbe::Answer AnswerOf(const HostPort& port) {
  PeerProbe probe(port);
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (probe.Poll() == PeerProbe::Answer::kNone && absl::Now() < deadline)
    std::this_thread::yield();
  return probe.Poll();
}

TEST(PeerProbe, APortAtWhichNobodyListensAnswers) {
  for (const char* address : {"127.0.0.1", "::1"}) {
    const auto port = ProbePort::Open(address, 0);
    if (!port.ok() && std::string(address) == "::1") continue;  // a machine without IPv6
    ASSERT_TRUE(port.ok()) << port.status();
    EXPECT_EQ(port->address().host, address);
    EXPECT_NE(port->address().port, 0);
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(AnswerOf(port->address()), PeerProbe::Answer::kReached) << address;
  }
}

TEST(PeerProbe, APortIsOneProcesss) {
  const auto port = ProbePort::Open("127.0.0.1", 0);
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_FALSE(ProbePort::Open("127.0.0.1", port->address().port).ok());
  EXPECT_FALSE(ProbePort::Open("node3", 0).ok());
}

TEST(PeerProbe, ARangeWithoutRoomIsLeftToOthers) {
  const int32_t ranks = 4;
  const PortRange documented{20000, 20000 + 3 * ranks + 1};  // one too few
  EXPECT_EQ(ProbePort::OpenFor("127.0.0.1", documented, 0, ranks), std::nullopt);
  const auto any = ProbePort::Open("127.0.0.1", 0);
  ASSERT_TRUE(any.ok()) << any.status();
  const uint16_t taken = any->address().port;
  const PortRange wider{static_cast<uint16_t>(taken - 3 * ranks - 2), taken};
  EXPECT_EQ(ProbePort::OpenFor("127.0.0.1", wider, 0, ranks), std::nullopt);  // is another's
  const auto next = ProbePort::OpenFor("127.0.0.1", wider, 1, ranks);
  if (next.has_value()) {  // nobody else of this machine has it
    EXPECT_EQ(next->address().port, taken - 1);
  }
}

TEST(PeerProbe, WhatCannotBeAskedSaysNothingAgainstThePeer) {
  EXPECT_EQ(AnswerOf({"node3", 4711}), PeerProbe::Answer::kReached);
}

TEST(PeerProbe, ThePortTravelsBehindAnAddress) {
  const std::string bytes("\0|coordd\xff", 9);
  for (const HostPort& port : {HostPort{"10.0.0.1", 4711}, HostPort{"fe80::1", 1}})
    EXPECT_EQ(ProbePortOf(WithProbePort(bytes, port)), port);
  EXPECT_EQ(ProbePortOf(bytes), std::nullopt);
  EXPECT_EQ(ProbePortOf(bytes + "|coordd-probe="), std::nullopt);
}

}  // namespace
}  // namespace coordd
