#include "server/connection_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Do = ConnectionGate::Verdict::Do;

const absl::Time kStart = absl::FromUnixSeconds(1000);
const std::string kHttp2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

TEST(OpeningOf, TellsByTheFirstBytes) {
  EXPECT_EQ(OpeningOf(""), Opening::kUndecided);
  EXPECT_EQ(OpeningOf("\x16"), Opening::kTls);
  EXPECT_EQ(OpeningOf("\x16\x03\x01"), Opening::kTls);
  EXPECT_EQ(OpeningOf("P"), Opening::kUndecided);
  EXPECT_EQ(OpeningOf(kHttp2.substr(0, 23)), Opening::kUndecided);
  EXPECT_EQ(OpeningOf(kHttp2), Opening::kHttp2);
  EXPECT_EQ(OpeningOf("POST / HT"), Opening::kOther);
  EXPECT_EQ(OpeningOf(std::string(1, '\0')), Opening::kOther);
}

// A gate at which one who speaks is let in.
class ConnectionGateTest : public testing::Test {
 protected:
  ConnectionGate Gate(const ConnectionGateOptions& options) { return ConnectionGate(options); }
  static Do Enter(ConnectionGate& gate, int fd, const std::string& address) {
    gate.Arrived(fd, address, kStart);
    const auto verdict = gate.Opened(fd, Opening::kHttp2);
    if (verdict.what == Do::kLetIn) gate.LetIn(fd);
    return verdict.what;
  }
};

TEST_F(ConnectionGateTest, LetsInWhoSpeaksAsIsSpokenHere) {
  for (const bool tls : {false, true}) {
    ConnectionGate gate = Gate({.tls = tls});
    gate.Arrived(5, "10.0.0.1", kStart);
    EXPECT_EQ(gate.Opened(5, Opening::kUndecided).what, Do::kWait);
    EXPECT_EQ(gate.Opened(5, Opening::kTls).what, tls ? Do::kLetIn : Do::kTell);
    EXPECT_EQ(gate.Opened(5, Opening::kHttp2).what, tls ? Do::kTell : Do::kLetIn);
    EXPECT_EQ(gate.Opened(5, tls ? Opening::kHttp2 : Opening::kTls).why,
              tls ? Refusal::kPlaintext : Refusal::kTls);
    EXPECT_EQ(gate.Opened(5, Opening::kOther).why, Refusal::kNotHttp2);
  }
}

TEST_F(ConnectionGateTest, IsFullUntilOneIsGone) {
  ConnectionGate gate = Gate({.connections_max = 2});
  EXPECT_EQ(Enter(gate, 5, "a"), Do::kLetIn);
  EXPECT_EQ(Enter(gate, 6, "a"), Do::kLetIn);
  EXPECT_TRUE(gate.full());
  EXPECT_EQ(Enter(gate, 7, "b"), Do::kTell);
  EXPECT_EQ(gate.Opened(7, Opening::kHttp2).why, Refusal::kFull);
  gate.Gone(5);
  EXPECT_EQ(gate.Opened(7, Opening::kHttp2).what, Do::kLetIn);
}

TEST_F(ConnectionGateTest, TheNumberOfAGoneConnectionMayComeAgain) {
  ConnectionGate gate = Gate({.connections_max = 2});
  Enter(gate, 5, "a");
  Enter(gate, 6, "a");
  EXPECT_EQ(Enter(gate, 5, "b"), Do::kLetIn);  // so the one of a is closed
  EXPECT_EQ(gate.open(), 2u);
  EXPECT_EQ(gate.AddressOf(5), "b");
}

TEST_F(ConnectionGateTest, BoundsWhatOneAddressHas) {
  ConnectionGate gate = Gate({.connections_max = 10, .connections_per_address_max = 2});
  Enter(gate, 5, "a");
  Enter(gate, 6, "a");
  EXPECT_EQ(Enter(gate, 7, "a"), Do::kTell);
  EXPECT_EQ(gate.Opened(7, Opening::kHttp2).why, Refusal::kAddress);
  EXPECT_EQ(Enter(gate, 8, "b"), Do::kLetIn);
  gate.Gone(6);
  EXPECT_EQ(gate.Opened(7, Opening::kHttp2).what, Do::kLetIn);
}

TEST_F(ConnectionGateTest, TheLongestSilentOfTheAddressWithMostMakesRoom) {
  ConnectionGate gate = Gate({.waiting_max = 4});
  EXPECT_EQ(gate.Arrived(5, "honest", kStart), -1);
  for (int fd : {6, 7, 8}) EXPECT_EQ(gate.Arrived(fd, "flood", kStart), -1);
  EXPECT_EQ(gate.Arrived(9, "flood", kStart), 6);
  EXPECT_EQ(gate.Arrived(10, "other", kStart), 7);
  EXPECT_EQ(gate.waiting(), 4u);
  EXPECT_EQ(gate.Opened(5, Opening::kHttp2).what, Do::kLetIn);
}

TEST_F(ConnectionGateTest, WhoSaysNothingIsOverdue) {
  ConnectionGate gate = Gate({.opening_within = absl::Seconds(5)});
  EXPECT_EQ(gate.NextDeadline(), absl::InfiniteFuture());
  gate.Arrived(5, "a", kStart);
  gate.Arrived(6, "a", kStart + absl::Seconds(1));
  EXPECT_EQ(gate.NextDeadline(), kStart + absl::Seconds(5));
  EXPECT_THAT(gate.TakeOverdue(kStart + absl::Milliseconds(4999)), IsEmpty());
  EXPECT_THAT(gate.TakeOverdue(kStart + absl::Seconds(5)), ElementsAre(5));
  EXPECT_EQ(gate.NextDeadline(), kStart + absl::Seconds(6));
  gate.LetIn(6);
  EXPECT_EQ(gate.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(ConnectionGateTest, ForgetsWhoLeavesBeforeSayingAnything) {
  ConnectionGate gate = Gate({});
  gate.Arrived(5, "a", kStart);
  gate.Gone(5);
  EXPECT_EQ(gate.waiting(), 0u);
  EXPECT_EQ(gate.AddressOf(5), "");
  gate.LetIn(5);  // too late
  EXPECT_EQ(gate.open(), 0u);
}

TEST(BoundsFor, LeaveDescriptorsForOthers) {
  for (const size_t limit : {64, 128, 1024, 4096, 262144, 1 << 30}) {
    const ConnectionBounds bounds = BoundsFor(limit, 20);
    EXPECT_LE(bounds.connections + bounds.waiting + 20 + ReserveOf(limit), limit);
    EXPECT_GT(bounds.connections, 0u);
    EXPECT_GT(bounds.waiting, 0u);
  }
  EXPECT_GE(BoundsFor(128, 20).connections, 64u);
  EXPECT_GE(BoundsFor(262144, 20).connections, 131072u + 1000);
}

TEST(BoundsFor, LetSomebodyInWhateverTheLimit) {
  EXPECT_EQ(BoundsFor(10, 20).connections, 1u);
  EXPECT_EQ(BoundsFor(10, 20).waiting, 1u);
}

}  // namespace
}  // namespace coordd
