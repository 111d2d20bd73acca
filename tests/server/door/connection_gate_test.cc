#include "server/door/connection_gate.h"

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

Opening OpeningOfAll(const std::string& bytes) {
  return OpeningOf(bytes.substr(0, kOpeningBytes), bytes.size());
}

TEST(OpeningOf, TellsByTheFirstBytes) {
  EXPECT_EQ(OpeningOfAll(""), Opening::kUndecided);
  EXPECT_EQ(OpeningOfAll("P"), Opening::kUndecided);
  EXPECT_EQ(OpeningOfAll("POST / HT"), Opening::kOther);
  EXPECT_EQ(OpeningOfAll(std::string(1, '\0')), Opening::kOther);
}

TEST(OpeningOf, WaitsForAWholeRecordOfTls) {
  const std::string head("\x16\x03\x01\x01\x02\x01", 6);  // 258 bytes, the first of a ClientHello
  const std::string hello = head + std::string(257, 'x');
  for (size_t size = 0; size < hello.size(); ++size)
    EXPECT_EQ(OpeningOfAll(hello.substr(0, size)), Opening::kUndecided) << size;
  EXPECT_EQ(OpeningOfAll(hello), Opening::kTls);
  EXPECT_EQ(OpeningOfAll(hello + "more"), Opening::kTls);
}

TEST(OpeningOf, WhatCanBecomeNoHandshakeIsNotWaitedFor) {
  EXPECT_EQ(OpeningOfAll("\x16\x02"), Opening::kOther);                                  // SSL 2
  EXPECT_EQ(OpeningOfAll(std::string("\x16\x03\x01\x00\x00\x01", 6)), Opening::kOther);  // empty
  EXPECT_EQ(OpeningOfAll(std::string("\x16\x03\x01\x40\x01\x01", 6)), Opening::kOther);  // too long
  EXPECT_EQ(OpeningOfAll(std::string("\x16\x03\x01\x01\x00\x02", 6)),
            Opening::kOther);  // a ServerHello
}

TEST(OpeningOf, WaitsForTheSettingsOfAClientOfHttp2) {
  const std::string settings = kHttp2 + std::string("\0\0\6\4\0\0\0\0\0", 9) + "123456";
  for (size_t size = 1; size < settings.size(); ++size)
    EXPECT_EQ(OpeningOfAll(settings.substr(0, size)), Opening::kUndecided) << size;
  EXPECT_EQ(OpeningOfAll(settings), Opening::kHttp2);
  EXPECT_EQ(OpeningOfAll(kHttp2 + std::string(9, '\0')), Opening::kOther);  // a frame of data
  EXPECT_EQ(OpeningOfAll(kHttp2 + std::string("\1\0\0\4\0\0\0\0\0", 9)), Opening::kOther);
}

// A gate at which one who speaks is let in, and goes on.
class ConnectionGateTest : public testing::Test {
 protected:
  ConnectionGate Gate(const ConnectionGateOptions& options) { return ConnectionGate(options); }
  static Do Enter(ConnectionGate& gate, int fd, const std::string& address) {
    gate.Arrived(fd, address, kStart);
    const auto verdict = gate.Opened(fd, Opening::kHttp2);
    if (verdict.what == Do::kLetIn) gate.LetIn(fd);
    gate.Finished(fd);
    return verdict.what;
  }
  static Do Begin(ConnectionGate& gate, int fd, const std::string& address) {
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

TEST_F(ConnectionGateTest, WhoeverComesIsOneOfItsAddress) {
  ConnectionGate gate = Gate({.waiting_max = 3});
  gate.Arrived(5, "honest", kStart);
  gate.Arrived(6, "flood", kStart);
  gate.Arrived(7, "other", kStart);
  EXPECT_EQ(gate.Arrived(8, "flood", kStart), 6);
  EXPECT_EQ(gate.Arrived(9, "other", kStart), 7);
  EXPECT_EQ(gate.AddressOf(5), "honest");
}

TEST_F(ConnectionGateTest, WhoHasBegunWithoutGoingOnIsNoBetterThanWhoSaysNothing) {
  ConnectionGate gate = Gate({.connections_max = 10, .unfinished_max = 2, .waiting_max = 2});
  for (int fd : {5, 6}) Begin(gate, fd, "flood");
  EXPECT_EQ(Begin(gate, 7, "honest"), Do::kMakeRoom);
  EXPECT_EQ(Begin(gate, 8, "flood"), Do::kMakeRoom);
  EXPECT_EQ(gate.Arrived(9, "other", kStart), 8);
  EXPECT_THAT(gate.InLine(), ElementsAre(7));
}

TEST_F(ConnectionGateTest, OfAnAddressThoseWhoSayNothingMakeRoomFirst) {
  ConnectionGate gate = Gate({.connections_max = 10, .unfinished_max = 1, .waiting_max = 2});
  Begin(gate, 5, "a");
  EXPECT_EQ(Begin(gate, 6, "a"), Do::kMakeRoom);
  EXPECT_EQ(gate.Arrived(7, "a", kStart), -1);
  EXPECT_EQ(gate.Arrived(8, "a", kStart), 7);
  EXPECT_THAT(gate.InLine(), ElementsAre(6));
  EXPECT_EQ(gate.Opened(8, Opening::kHttp2).what, Do::kMakeRoom);
  EXPECT_EQ(gate.Arrived(9, "a", kStart), 9);  // itself: the others wait for their turn
  EXPECT_EQ(gate.AddressOf(9), "");
  EXPECT_THAT(gate.InLine(), ElementsAre(6, 8));
}

TEST_F(ConnectionGateTest, WhoDoesNotGoOnHoldsFewPlaces) {
  ConnectionGate gate = Gate({.connections_max = 10, .unfinished_max = 2});
  EXPECT_EQ(Begin(gate, 5, "flood"), Do::kLetIn);
  EXPECT_EQ(Begin(gate, 6, "flood"), Do::kLetIn);
  EXPECT_EQ(Begin(gate, 7, "flood"), Do::kMakeRoom);
  EXPECT_THAT(gate.InLine(), ElementsAre(7));
  gate.Finished(6);
  EXPECT_EQ(gate.Opened(7, Opening::kHttp2).what, Do::kLetIn);
  EXPECT_FALSE(gate.has_line());
}

TEST_F(ConnectionGateTest, AnotherAddressIsFirstInLineAndMakesItsRoomAtOnce) {
  ConnectionGate gate = Gate({.connections_max = 10, .unfinished_max = 3});
  for (int fd : {5, 6, 7}) Begin(gate, fd, "flood");
  Begin(gate, 8, "flood");
  EXPECT_EQ(Begin(gate, 9, "honest"), Do::kMakeRoom);
  EXPECT_THAT(gate.InLine(), ElementsAre(9, 8));
  EXPECT_THAT(gate.WhoMakesRoom(9).fds, ElementsAre(5, 6, 7));
  EXPECT_TRUE(gate.WhoMakesRoom(9).at_once);
  EXPECT_FALSE(gate.WhoMakesRoom(8).at_once);
}

TEST_F(ConnectionGateTest, AddressesThatHaveAsManyDoNotCloseEachOthers) {
  ConnectionGate gate = Gate({.connections_max = 10, .unfinished_max = 3});
  for (int fd : {5, 6}) Begin(gate, fd, "a");
  Begin(gate, 7, "b");
  EXPECT_EQ(Begin(gate, 8, "b"), Do::kMakeRoom);
  EXPECT_FALSE(gate.WhoMakesRoom(8).at_once);
}

TEST_F(ConnectionGateTest, WhoIsBeingClosedKeepsItsPlaceUntilItIsGone) {
  ConnectionGate gate = Gate({.connections_max = 10, .unfinished_max = 1});
  Begin(gate, 5, "flood");
  EXPECT_EQ(Begin(gate, 6, "honest"), Do::kMakeRoom);
  gate.Closing(5);
  EXPECT_EQ(gate.Opened(6, Opening::kHttp2).what, Do::kMakeRoom);
  EXPECT_THAT(gate.AllClosing(), ElementsAre(5));
  gate.Gone(5);
  EXPECT_EQ(gate.Opened(6, Opening::kHttp2).what, Do::kLetIn);
}

TEST_F(ConnectionGateTest, NobodyIsToldThatItIsFullByThoseWhoDoNotGoOn) {
  ConnectionGate gate = Gate({.connections_max = 2, .unfinished_max = 2});
  Enter(gate, 5, "a");
  Begin(gate, 6, "flood");
  EXPECT_EQ(Begin(gate, 7, "b"), Do::kMakeRoom);
  gate.Finished(6);  // so it was none of these
  EXPECT_EQ(gate.Opened(7, Opening::kHttp2).why, Refusal::kFull);
  EXPECT_FALSE(gate.has_line());
}

TEST_F(ConnectionGateTest, WhoIsLetInToBeRefusedTakesNobodysPlace) {
  ConnectionGate gate = Gate({.connections_max = 2, .refused_max = 1});
  Enter(gate, 5, "a");
  gate.Arrived(6, "b", kStart);
  EXPECT_TRUE(gate.RoomToRefuse());
  gate.LetInToRefuse(6);
  EXPECT_FALSE(gate.RoomToRefuse());
  EXPECT_EQ(Enter(gate, 7, "c"), Do::kLetIn);
  gate.Gone(6);
  EXPECT_TRUE(gate.RoomToRefuse());
}

TEST_F(ConnectionGateTest, WhoLeavesTheLineIsForgotten) {
  ConnectionGate gate = Gate({.unfinished_max = 1});
  Begin(gate, 5, "a");
  Begin(gate, 6, "a");
  EXPECT_TRUE(gate.has_line());
  gate.Gone(6);
  EXPECT_FALSE(gate.has_line());
  EXPECT_THAT(gate.WhoMakesRoom(6).fds, IsEmpty());
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
  for (const size_t limit : {64, 100, 128, 256, 1024, 4096, 262144, 1 << 30}) {
    const ConnectionBounds bounds = BoundsFor(limit, 20);
    EXPECT_LE(bounds.connections * kDescriptorsPerConnection + bounds.waiting + bounds.refused +
                  20 + ReserveOf(limit),
              limit);
    EXPECT_LE(bounds.unfinished, bounds.connections);
    EXPECT_GT(bounds.unfinished, 0u);
    EXPECT_LE(HttpShareOf(limit) + 14, ReserveOf(limit));
    EXPECT_GT(bounds.connections, 0u);
    EXPECT_GT(bounds.waiting, 0u);
  }
  EXPECT_GE(BoundsFor(128, 20).connections, 64u / kDescriptorsPerConnection);
  EXPECT_GE(BoundsFor(1 << 19, 20).connections, 131072u + 1000);
}

// One who comes has to find a place beside those of two addresses that do nothing but come.
TEST(BoundsFor, LeaveAFewPlacesInEachBoundHoweverSmallTheLimit) {
  const ConnectionBounds bounds = BoundsFor(64, 26);
  EXPECT_GE(bounds.waiting, 4u);
  EXPECT_GE(bounds.unfinished, 3u);
}

TEST(BoundsFor, LetSomebodyInWhateverTheLimit) {
  EXPECT_EQ(BoundsFor(10, 20).connections, 1u);
  EXPECT_EQ(BoundsFor(10, 20).waiting, 1u);
  // ReserveOf(64) descriptors are kept back: for each of the first that are free somebody may wait.
  for (size_t in_use = 0; in_use < 80; ++in_use) EXPECT_GE(BoundsFor(64, in_use).waiting, 1u);
}

}  // namespace
}  // namespace coordd
