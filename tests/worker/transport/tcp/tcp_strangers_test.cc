// Who is not believed by a rank, and what those that are may not do.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/owned_fd.h"
#include "common/protocol/store_memory.h"
#include "tests/support/fake_clock.h"
#include "tests/support/sanitized.h"
#include "worker/interfaces/peer_status.h"
#include "worker/transport/tcp/meeting.h"
#include "worker/transport/tcp/tcp_listener.h"
#include "worker/transport/tcp/tcp_transport.h"

namespace coordd {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr absl::Duration kHangLimit = absl::Minutes(1);
constexpr Tag kTag{LaneId{0}, 1};
// What this peer says, all of it, which a connection has room for.
size_t Write(TcpStream& stream, absl::Span<const std::byte> said) {
  static std::vector<std::byte> room(size_t{1} << 20);
  const iovec part = {const_cast<std::byte*>(said.data()), said.size()};
  return stream.Write({&part, 1}, absl::MakeSpan(room)).bytes;
}

// The ranks of one generation that this thread drives; the others are the test's.
class Ranks {
 public:
  explicit Ranks(int32_t world_size) : world_size_(world_size) {}

  TcpTransport& Add(int32_t rank,
                    TcpTransportOptions options = {.local_address = "127.0.0.1", .ports = {}},
                    Clock& clock = Clock::Real()) {
    transports_.push_back(std::make_unique<TcpTransport>(std::move(options), clock));
    EXPECT_EQ(transports_.back()->Connect(Layout(rank), store, absl::InfiniteFuture()),
              absl::OkStatus());
    return *transports_.back();
  }
  GroupLayout Layout(int32_t rank) const { return GroupLayout(Rank{rank}, {{world_size_, 1}}); }
  TcpAddress AddressOf(int32_t rank) {
    return *TcpAddress::Parse(*store.Get(absl::StrCat("tcp/", rank), absl::InfiniteFuture()));
  }
  bool DriveUntil(const std::function<bool()>& condition) {
    const absl::Time limit = Clock::Real().Now() + kHangLimit;
    while (!condition()) {
      for (const auto& transport : transports_) transport->Progress();
      if (Clock::Real().Now() > limit) {
        ADD_FAILURE() << "it hangs";
        return false;
      }
    }
    return true;
  }
  // A message from one to the other.
  void Exchange(TcpTransport& from, int32_t from_rank, TcpTransport& to, int32_t to_rank) {
    for (const size_t size : {size_t{100}, size_t{300000}}) {
      const Bytes sent(size, std::byte{7});
      Bytes received(size);
      std::optional<absl::Status> sent_status, received_status;
      from.Send(Rank{to_rank}, kTag, sent, [&](absl::Status status) { sent_status = status; });
      to.Receive(Rank{from_rank}, kTag, absl::MakeSpan(received),
                 [&](absl::Status status) { received_status = status; });
      ASSERT_TRUE(DriveUntil([&] { return sent_status && received_status; }));
      EXPECT_EQ(*sent_status, absl::OkStatus());
      EXPECT_EQ(*received_status, absl::OkStatus());
      EXPECT_EQ(received, sent);
    }
  }

  InMemoryStore store;

 private:
  const int32_t world_size_;
  std::vector<std::unique_ptr<TcpTransport>> transports_;
};

OwnedFd ConnectTo(const TcpAddress& address) {
  int error = 0;
  return BeginConnecting(address.at, &error);
}

void Say(const OwnedFd& socket, absl::string_view text) {
  EXPECT_EQ(send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(text.size()));
}

bool HasEnded(const OwnedFd& socket) {
  std::array<char, 4096> bytes;
  const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), 0);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

// What connects with a key of its own making and says who it is; it has met the rank, or not.
std::unique_ptr<Meeting> Meet(Ranks& ranks, SSL_CTX* context, const TcpAddress& address,
                              const LinkIdentity& identity, absl::string_view secret) {
  OwnedFd socket = ConnectTo(address);
  const std::string text = identity.ToText();
  TlsHandshake handshake =
      TlsHandshake::Connecting(context, socket.get(), text, DeriveKey(secret, text));
  auto meeting = std::make_unique<Meeting>(std::move(socket), std::move(handshake),
                                           /*connects=*/true, identity.encrypts);
  ranks.DriveUntil([&] {
    const Meeting::Stage stage = meeting->Step();
    return stage != Meeting::Stage::kConnecting && stage != Meeting::Stage::kProving &&
           stage != Meeting::Stage::kAwaiting;
  });
  return meeting;
}

TEST(TcpStrangers, AreEndedAndNamedAndTheRanksGoOn) {
  Ranks ranks(2);
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
  Ranks ranks(3), older(3);
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
  Ranks ranks(2);
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

// Who says nothing, or half of it, takes a place of which there are few, and nobody else's.
TEST(TcpStrangers, DoNotKeepRanksFromMeeting) {
  Ranks ranks(2);
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

// A rank of the job that lies is lost, and its connection ended; the process goes on.
TEST(TcpRank, IsLostWhenItSaysWhatItMayNot) {
  const auto context = NewTlsContext();
  const std::vector<FrameHeader> lies = {{FrameKind::kSmall, kTag.Encode(), uint64_t{1} << 40},
                                         {FrameKind::kData, kTag.Encode(), uint64_t{1} << 40},
                                         {FrameKind::kData, kTag.Encode() + 1, 500000},
                                         {FrameKind::kTaken, 0, 77},
                                         {FrameKind::kYield, 0, 0},
                                         {static_cast<FrameKind>(200), 0, 0}};
  for (const bool encrypts : {false, true}) {
    for (const FrameHeader& lie : lies) {
      Ranks ranks(2);
      TcpTransport& zero =
          ranks.Add(0, {.local_address = "127.0.0.1", .ports = {}, .encrypts = encrypts});
      const TcpAddress address = ranks.AddressOf(0);
      const auto meeting = Meet(ranks, context->get(), address,
                                {Rank{1}, Rank{0}, encrypts, std::nullopt}, address.secret);
      ASSERT_EQ(meeting->stage(), Meeting::Stage::kMet);
      const std::unique_ptr<TcpStream> stream = meeting->TakeStream();
      Bytes landing(500000);
      std::optional<absl::Status> ended;
      zero.Receive(Rank{1}, kTag, absl::MakeSpan(landing),
                   [&](absl::Status status) { ended = status; });
      const EncodedHeader said = Encode(lie);
      EXPECT_EQ(Write(*stream, said), said.size());
      ASSERT_TRUE(ranks.DriveUntil([&] { return ended.has_value(); }));
      EXPECT_EQ(SuspectRank(*ended), Rank{1}) << *ended;
      EXPECT_THAT(std::string(ended->message()), HasSubstr("it has sent"));
    }
  }
}

// Who can change packets on the way ends a connection of two ranks, and no more.
TEST(TcpRank, IsLostWhenARecordIsNotWhatItHasSent) {
  const auto context = NewTlsContext();
  Ranks ranks(3);
  const TcpTransportOptions encrypted{.local_address = "127.0.0.1", .ports = {}, .encrypts = true};
  TcpTransport& zero = ranks.Add(0, encrypted);
  TcpTransport& two = ranks.Add(2, encrypted);
  const TcpAddress address = ranks.AddressOf(0);
  const auto meeting =
      Meet(ranks, context->get(), address, {Rank{1}, Rank{0}, true, std::nullopt}, address.secret);
  ASSERT_EQ(meeting->stage(), Meeting::Stage::kMet);
  const std::unique_ptr<TcpStream> stream = meeting->TakeStream();
  Bytes landing(500000);
  std::optional<absl::Status> ended;
  zero.Receive(Rank{1}, kTag, absl::MakeSpan(landing),
               [&](absl::Status status) { ended = status; });
  const EncodedRecordHeader header = Encode(RecordHeader{RecordKind::kFrames, 16});
  Bytes record(header.begin(), header.end());
  record.resize(record.size() + 16 + kRecordTagBytes);
  EXPECT_EQ(send(stream->socket(), record.data(), record.size(), 0),
            static_cast<ssize_t>(record.size()));
  ASSERT_TRUE(ranks.DriveUntil([&] { return ended.has_value(); }));
  EXPECT_EQ(SuspectRank(*ended), Rank{1}) << *ended;
  EXPECT_THAT(std::string(ended->message()), HasSubstr("its tag is false"));
  ranks.Exchange(zero, 0, two, 2);
}

bool CanRead(int descriptor) {
  pollfd watched = {descriptor, POLLIN, 0};
  return poll(&watched, 1, 0) == 1;
}

// Who waits for the network may sleep at its descriptor: what comes can be read there.
TEST(TcpRank, HasADescriptorThatTellsOfWhatComes) {
  for (const bool encrypts : {false, true}) {
    Ranks ranks(2);
    const TcpTransportOptions options{
        .local_address = "127.0.0.1", .ports = {}, .encrypts = encrypts};
    TcpTransport& zero = ranks.Add(0, options);
    TcpTransport& one = ranks.Add(1, options);
    ranks.Exchange(zero, 0, one, 1);
    Bytes landing(1000);
    std::optional<absl::Status> received, sent;
    zero.Receive(Rank{1}, kTag, absl::MakeSpan(landing),
                 [&](absl::Status status) { received = status; });
    for (int i = 0; i < 100; ++i) zero.Progress();
    ASSERT_GE(zero.Descriptor(), 0);
    EXPECT_FALSE(CanRead(zero.Descriptor()));
    const Bytes said(1000);
    one.Send(Rank{0}, kTag, said, [&](absl::Status status) { sent = status; });
    EXPECT_EQ(one.Descriptor(), -1);  // it has something to do
    while (!sent.has_value()) one.Progress();
    EXPECT_TRUE(CanRead(zero.Descriptor()));
    while (!received.has_value()) zero.Progress();
    EXPECT_FALSE(CanRead(zero.Descriptor()));
    const OwnedFd stranger = ConnectTo(ranks.AddressOf(0));
    while (!CanRead(zero.Descriptor())) {
    }
    zero.LookAtPeers();
    zero.Progress();
    EXPECT_FALSE(CanRead(zero.Descriptor()));
  }
}

// In the middle of a header, and of a payload.
TEST(TcpRank, IsLostWhenItEndsInTheMiddleOfAFrame) {
  const auto context = NewTlsContext();
  for (const size_t bytes : {size_t{5}, FrameHeader::kBytes + 50000}) {
    Ranks ranks(2);
    TcpTransport& zero = ranks.Add(0);
    const TcpAddress address = ranks.AddressOf(0);
    const auto meeting = Meet(ranks, context->get(), address,
                              {Rank{1}, Rank{0}, false, std::nullopt}, address.secret);
    std::unique_ptr<TcpStream> stream = meeting->TakeStream();
    Bytes landing(500000);
    std::optional<absl::Status> ended;
    zero.Receive(Rank{1}, kTag, absl::MakeSpan(landing),
                 [&](absl::Status status) { ended = status; });
    const EncodedHeader header = Encode({FrameKind::kData, kTag.Encode(), landing.size()});
    Bytes said(header.begin(), header.end());
    said.resize(bytes);
    for (int i = 0; i < 10; ++i) zero.Progress();
    EXPECT_EQ(Write(*stream, said), said.size());
    for (int i = 0; i < 100; ++i) zero.Progress();
    EXPECT_FALSE(ended.has_value());
    stream.reset();
    ASSERT_TRUE(ranks.DriveUntil([&] { return ended.has_value(); }));
    EXPECT_EQ(SuspectRank(*ended), Rank{1}) << *ended;
  }
}

TEST(TcpRank, SaysThatEncryptionDiffers) {
  Ranks ranks(2);
  TcpTransport& zero = ranks.Add(0);
  ranks.Add(1, {.local_address = "127.0.0.1", .ports = {}, .encrypts = true});
  Bytes landing(10);
  std::optional<absl::Status> ended;
  zero.Receive(Rank{1}, kTag, absl::MakeSpan(landing),
               [&](absl::Status status) { ended = status; });
  ASSERT_TRUE(ranks.DriveUntil([&] { return ended.has_value(); }));
  EXPECT_EQ(SuspectRank(*ended), Rank{1});
  EXPECT_THAT(std::string(ended->message()), HasSubstr("COORDD_DATA_ENCRYPTION is on there"));
}

TEST(TcpRank, ListensOnPortsOfItsRange) {
  Ranks ranks(2);
  const PortRange range{29710, 29719};
  ranks.Add(0, {.local_address = "127.0.0.1", .ports = range});
  ranks.Add(1, {.local_address = "127.0.0.1", .ports = range});
  for (const int32_t rank : {0, 1}) {
    EXPECT_GE(ranks.AddressOf(rank).at.port, range.first);
    EXPECT_LE(ranks.AddressOf(rank).at.port, range.last);
    EXPECT_GE(ranks.AddressOf(rank).probe_port->port, range.first);
    EXPECT_LE(ranks.AddressOf(rank).probe_port->port, range.last);
  }
  TcpTransport third({.local_address = "127.0.0.1", .ports = PortRange{29710, 29711}});
  const absl::Status status = third.Connect(ranks.Layout(0), ranks.store, absl::InfiniteFuture());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("on a port of 29710-29711"));
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * getpagesize();
}

class TcpRankWithPeers : public testing::TestWithParam<bool> {};

TEST_P(TcpRankWithPeers, HasAThousandWithin64MiB) {
  constexpr int32_t kPeers = 1000;
  const bool encrypts = GetParam();
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 2 * kPeers + 100) GTEST_SKIP() << "this process may open few files";
  const auto context = NewTlsContext();
  const int64_t before = ResidentBytes();
  Ranks ranks(kPeers + 1);
  TcpTransport& zero =
      ranks.Add(0, {.local_address = "127.0.0.1", .ports = {}, .encrypts = encrypts});
  const TcpAddress address = ranks.AddressOf(0);
  std::vector<std::unique_ptr<TcpStream>> peers;
  std::vector<std::byte> landings(kPeers);
  int32_t received = 0;
  for (int32_t i = 1; i <= kPeers; ++i) {
    const auto meeting = Meet(ranks, context->get(), address,
                              {Rank{i}, Rank{0}, encrypts, std::nullopt}, address.secret);
    ASSERT_EQ(meeting->stage(), Meeting::Stage::kMet);
    peers.push_back(meeting->TakeStream());
    zero.Receive(Rank{i}, kTag, absl::MakeSpan(landings).subspan(static_cast<size_t>(i - 1), 1),
                 [&](absl::Status status) { received += status.ok() ? 1 : 0; });
  }
  const EncodedHeader header = Encode({FrameKind::kSmall, kTag.Encode(), 1});
  Bytes message(header.begin(), header.end());
  message.push_back(std::byte{9});
  for (const auto& peer : peers) EXPECT_EQ(Write(*peer, message), message.size());
  EXPECT_TRUE(ranks.DriveUntil([&] { return received == kPeers; }));
  // A sanitizer keeps what is freed, and more beside what is not.
  if (!kIsSanitized) {
    EXPECT_LE(ResidentBytes() - before, int64_t{64} << 20);
  }
}

INSTANTIATE_TEST_SUITE_P(TcpRank, TcpRankWithPeers, testing::Bool(),
                         [](const auto& info) { return info.param ? "Encrypted" : "InPlain"; });

}  // namespace
}  // namespace coordd
