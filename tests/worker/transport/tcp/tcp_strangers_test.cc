// Who is not believed by a rank.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log_limit.h"
#include "tests/support/fake_clock.h"
#include "tests/worker/transport/tcp/tcp_ranks.h"

namespace coordd::tcp_ranks {
namespace {

using testing::HasSubstr;

TEST(TcpStrangers, AreEndedAndNamedAndTheRanksGoOn) {
  TcpRanks ranks(2);
  TcpTransport& zero = ranks.Add(0);
  TcpTransport& one = ranks.Add(1);
  const TcpAddress address = ranks.AddressOf(0);
  testing::internal::CaptureStderr();
  for (const std::string& said :
       {std::string(100000, '\0'), std::string(4096, '\xff'), std::string("x\n\n\n\n\n"),
        std::string("GET / HTTP/1.1\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc", 9) + std::string(508, 'y')}) {
    const OwnedFd stranger = ConnectTo(address);
    Say(stranger, said.substr(0, 16000));
    ranks.Exchange(zero, 0, one, 1);
    EXPECT_TRUE(ranks.DriveUntil([&] { return HasEnded(stranger); }));
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("a connection from 127.0.0.1:"));
  EXPECT_THAT(log, HasSubstr("to rank 0's port for other ranks was ended, and nothing believed"));
}

TEST(TcpStrangers, KnowNoKeyOfThisGenerationAndRank) {
  TcpRanks ranks(3), older(3);
  TcpTransport& zero = ranks.Add(0);
  TcpTransport& one = ranks.Add(1);
  older.Add(0);
  const auto context = NewTlsContext();
  const TcpAddress address = ranks.AddressOf(0);
  const LinkIdentity two{Rank{2}, Rank{0}, false, std::nullopt};
  LinkIdentity to_other = two, encrypts = two, itself = two, nobody = two;
  to_other.to = Rank{1};
  encrypts.encrypts = true;
  itself.from = Rank{0};
  nobody.from = Rank{3};
  const std::vector<std::pair<LinkIdentity, std::string>> tried = {
      {two, older.AddressOf(0).secret},  // of another generation
      {two, ranks.AddressOf(1).secret},  // of another rank
      {to_other, address.secret},       {encrypts, address.secret},
      {itself, address.secret},         {nobody, address.secret}};
  for (const auto& [identity, secret] : tried) {
    const auto meeting = Meet(ranks, context->get(), address, identity, secret);
    EXPECT_EQ(meeting->stage(), Meeting::Stage::kFailed) << identity.ToText();
  }
  EXPECT_EQ(Meet(ranks, context->get(), address, two, address.secret)->stage(),
            Meeting::Stage::kMet);
  ranks.Exchange(zero, 0, one, 1);
}

TEST(TcpStrangers, AreListenedToForAWhile) {
  FakeClock clock(absl::UnixEpoch());
  TcpRanks ranks(2);
  TcpTransport& zero = ranks.Add(0, {.local_address = "127.0.0.1", .ports = {}}, clock);
  const OwnedFd silent = ConnectTo(ranks.AddressOf(0)), slow = ConnectTo(ranks.AddressOf(0));
  Say(slow, std::string("\x16\x03\x01\x02\x00\x01", 6));
  for (int i = 0; i < 100; ++i) zero.Progress();
  EXPECT_FALSE(HasEnded(silent));
  clock.Advance(PeerMeetings::kProveWithin);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(ranks.DriveUntil([&] { return HasEnded(silent) && HasEnded(slow); }));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("it has not said who it is"));
}

// A rank may give up a connection that crosses another one, or end, before it has said a word, or
// has proved who it is.
TEST(TcpStrangers, AreNoRanksThatLeave) {
  FakeClock clock(absl::UnixEpoch());
  TcpRanks ranks(2);
  TcpTransportOptions options{.local_address = "127.0.0.1", .ports = {}};
  options.turned_away = std::make_shared<std::atomic<int64_t>>(0);
  TcpTransport& zero = ranks.Add(0, options, clock);
  const TcpAddress address = ranks.AddressOf(0);
  const auto context = NewTlsContext();
  const auto turn = [&] {
    for (int i = 0; i < 100; ++i) zero.Progress();
  };
  testing::internal::CaptureStderr();
  for (const bool says_hello : {false, true}) {
    const std::string text = LinkIdentity{Rank{1}, Rank{0}, false, std::nullopt}.ToText();
    const OwnedFd rank = ConnectTo(address);
    TlsHandshake handshake =
        TlsHandshake::Connecting(context->get(), rank.get(), text, DeriveKey(address.secret, text));
    turn();
    if (!says_hello) continue;
    EXPECT_EQ(handshake.Step(), TlsHandshake::Outcome::kWantsRead);
  }
  turn();
  clock.Advance(UnspokenEnds::kKnownWithin);
  turn();
  EXPECT_EQ(*options.turned_away, 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(TcpStrangers, AreThoseThatLeaveWithoutAWordFromWhereNoRankIs) {
  FakeClock clock(absl::UnixEpoch());
  TcpRanks ranks(2);
  TcpTransportOptions options{.local_address = "127.0.0.1", .ports = {}};
  options.turned_away = std::make_shared<std::atomic<int64_t>>(0);
  TcpTransport& zero = ranks.Add(0, options, clock);
  const TcpAddress address = ranks.AddressOf(0);
  testing::internal::CaptureStderr();
  ConnectFrom("127.0.0.2", address);
  for (int i = 0; i < 100; ++i) zero.Progress();
  EXPECT_EQ(*options.turned_away, 0);
  clock.Advance(UnspokenEnds::kKnownWithin);
  for (int i = 0; i < 100; ++i) zero.Progress();
  EXPECT_EQ(*options.turned_away, 1);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("a connection from 127.0.0.2:"));
  EXPECT_THAT(log, HasSubstr("it was closed without a word, and no rank is known at its address"));
}

// Who says nothing, or half of it, takes a place of which there are few, and nobody else's.
TEST(TcpStrangers, DoNotKeepRanksFromMeeting) {
  TcpRanks ranks(2);
  TcpTransport& zero = ranks.Add(0);
  TcpTransport& one = ranks.Add(1);
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  std::vector<OwnedFd> strangers;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 900; ++i) {
    strangers.push_back(ConnectTo(ranks.AddressOf(i % 2)));
    ASSERT_TRUE(strangers.back().valid());
    if (i % 3 == 0) Say(strangers.back(), std::string("\x16\x03\x01\x02\x00\x01", 6));
  }
  ranks.Exchange(zero, 0, one, 1);
  ranks.Exchange(one, 1, zero, 0);
  size_t open = 0;
  ranks.DriveUntil([&] {
    open = 0;
    for (const OwnedFd& stranger : strangers) open += HasEnded(stranger) ? 0 : 1;
    return open <= 2 * PeerMeetings::kCallersMax;
  });
  EXPECT_LE(open, 2 * PeerMeetings::kCallersMax);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_LT(std::count(log.begin(), log.end(), '\n'), 200);
}

// Strangers at one address take no place from a rank at another, however late that says who it is.
TEST(TcpStrangers, AtOneAddressTakeNoPlaceOfAnother) {
  TcpRanks ranks(2);
  TcpTransport& zero = ranks.Add(0);
  const TcpAddress address = ranks.AddressOf(0);
  const auto context = NewTlsContext();
  OwnedFd honest = ConnectTo(address);
  for (int i = 0; i < 100; ++i) zero.Progress();
  testing::internal::CaptureStderr();
  std::vector<OwnedFd> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(ConnectFrom("127.0.0.2", address));
    ASSERT_TRUE(strangers.back().valid());
    zero.LookAtPeers();
    for (int turn = 0; turn < 4; ++turn) zero.Progress();
  }
  const std::string text = LinkIdentity{Rank{1}, Rank{0}, false, std::nullopt}.ToText();
  TlsHandshake handshake =
      TlsHandshake::Connecting(context->get(), honest.get(), text, DeriveKey(address.secret, text));
  Meeting meeting(std::move(honest), std::move(handshake), /*connects=*/true, false);
  ranks.DriveUntil([&] {
    const Meeting::Stage stage = meeting.Step();
    return stage == Meeting::Stage::kMet || stage == Meeting::Stage::kEnded ||
           stage == Meeting::Stage::kFailed;
  });
  EXPECT_EQ(meeting.stage(), Meeting::Stage::kMet) << meeting.failure();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("a connection from 127.0.0.2:"));
}

// As many as there are places may be the ranks of one large node.
TEST(TcpStrangers, LeaveAllPlacesToTheRanksOfOneNode) {
  constexpr auto kRanks = static_cast<int32_t>(PeerMeetings::kCallersMax);
  TcpRanks ranks(kRanks + 1);
  TcpTransport& zero = ranks.Add(0);
  const TcpAddress address = ranks.AddressOf(0);
  const auto context = NewTlsContext();
  std::vector<OwnedFd> sockets;
  for (int32_t i = 0; i < kRanks; ++i) sockets.push_back(ConnectTo(address));
  zero.LookAtPeers();
  for (int i = 0; i < 200; ++i) zero.Progress();
  for (int32_t i = 0; i < kRanks; ++i) {
    const std::string text = LinkIdentity{Rank{i + 1}, Rank{0}, false, std::nullopt}.ToText();
    OwnedFd& socket = sockets[static_cast<size_t>(i)];
    TlsHandshake handshake = TlsHandshake::Connecting(context->get(), socket.get(), text,
                                                      DeriveKey(address.secret, text));
    Meeting meeting(std::move(socket), std::move(handshake), /*connects=*/true, false);
    ranks.DriveUntil([&] { return meeting.Step() >= Meeting::Stage::kMet; });
    EXPECT_EQ(meeting.stage(), Meeting::Stage::kMet) << i << ": " << meeting.failure();
  }
}

// Who has heard the first words of a rank and says them again gets no further, and is named and
// counted.
TEST(TcpStrangers, ThatRepeatWhatARankHasSaidAreNamedAndCounted) {
  FakeClock clock(absl::UnixEpoch());
  TcpRanks ranks(2);
  TcpTransportOptions options{.local_address = "127.0.0.1", .ports = {}};
  options.turned_away = std::make_shared<std::atomic<int64_t>>(0);
  TcpTransport& zero = ranks.Add(0, options, clock);
  const TcpAddress address = ranks.AddressOf(0);
  const auto context = NewTlsContext();
  const LinkIdentity one{Rank{1}, Rank{0}, false, std::nullopt};
  // The words of a rank that has the key.
  std::array<int, 2> pair;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()), 0);
  const OwnedFd speaks(pair[0]), hears(pair[1]);
  TlsHandshake rank = TlsHandshake::Connecting(context->get(), speaks.get(), one.ToText(),
                                               DeriveKey(address.secret, one.ToText()));
  EXPECT_EQ(rank.Step(), TlsHandshake::Outcome::kWantsRead);
  std::string words(4096, '\0');
  words.resize(static_cast<size_t>(recv(hears.get(), words.data(), words.size(), 0)));
  const auto met = Meet(ranks, context->get(), address, one, address.secret);
  ASSERT_EQ(met->stage(), Meeting::Stage::kMet);
  for (int i = 0; i < 100; ++i) zero.Progress();
  EXPECT_EQ(*options.turned_away, 0);
  clock.Advance(absl::Minutes(1));
  testing::internal::CaptureStderr();
  for (int i = 0; i < 30; ++i) {
    OwnedFd stranger = ConnectFrom("127.0.0.2", address);
    Say(stranger, words);
    ranks.DriveUntil([&] {
      std::array<char, 1> byte;
      return recv(stranger.get(), byte.data(), 1, MSG_PEEK) == 1;  // what a rank would answer
    });
    stranger = OwnedFd();
    ranks.DriveUntil([&] { return *options.turned_away == i + 1; });
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("a connection from 127.0.0.2:"));
  EXPECT_THAT(log, HasSubstr("(without a proof it has said: "));
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), LogLimit::kBurst);
}

}  // namespace
}  // namespace coordd::tcp_ranks
