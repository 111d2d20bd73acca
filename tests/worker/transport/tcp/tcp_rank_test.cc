// What ranks that are believed may not do, and how they are lost.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/sanitized.h"
#include "tests/worker/transport/tcp/tcp_ranks.h"
#include "worker/interfaces/peer_status.h"

namespace coordd::tcp_ranks {
namespace {

using testing::HasSubstr;

// A rank of the job that lies is lost, and its connection ended; the process goes on.
TEST(TcpRank, IsLostWhenItSaysWhatItMayNot) {
  const auto context = NewTlsContext();
  const std::vector<FrameHeader> lies = {{FrameKind::kSmall, kTcpTag.Encode(), uint64_t{1} << 40},
                                         {FrameKind::kData, kTcpTag.Encode(), uint64_t{1} << 40},
                                         {FrameKind::kData, kTcpTag.Encode() + 1, 500000},
                                         {FrameKind::kTaken, 0, 77},
                                         {FrameKind::kYield, 0, 0},
                                         {static_cast<FrameKind>(200), 0, 0}};
  for (const bool encrypts : {false, true}) {
    for (const FrameHeader& lie : lies) {
      TcpRanks ranks(2);
      TcpTransport& zero =
          ranks.Add(0, {.local_address = "127.0.0.1", .ports = {}, .encrypts = encrypts});
      const TcpAddress address = ranks.AddressOf(0);
      const auto meeting = Meet(ranks, context->get(), address,
                                {Rank{1}, Rank{0}, encrypts, std::nullopt}, address.secret);
      ASSERT_EQ(meeting->stage(), Meeting::Stage::kMet);
      const std::unique_ptr<TcpStream> stream = meeting->TakeStream();
      std::vector<std::byte> landing(500000);
      std::optional<absl::Status> ended;
      zero.Receive(Rank{1}, kTcpTag, absl::MakeSpan(landing),
                   [&](absl::Status status) { ended = status; });
      testing::internal::CaptureStderr();
      const EncodedHeader said = Encode(lie);
      EXPECT_EQ(Write(*stream, said), said.size());
      ASSERT_TRUE(ranks.DriveUntil([&] { return ended.has_value(); }));
      EXPECT_EQ(SuspectRank(*ended), Rank{1}) << *ended;
      EXPECT_THAT(testing::internal::GetCapturedStderr(),
                  HasSubstr("rank 0 has lost rank 1: it has sent"));
      EXPECT_THAT(std::string(ended->message()), HasSubstr("it has sent"));
      EXPECT_THAT(std::string(ended->message()), HasSubstr("(its end is at 127.0.0.1:"));
    }
  }
}

// Who can change packets on the way ends a connection of two ranks, and no more.
TEST(TcpRank, IsLostWhenARecordIsNotWhatItHasSent) {
  const auto context = NewTlsContext();
  TcpRanks ranks(3);
  const TcpTransportOptions encrypted{.local_address = "127.0.0.1", .ports = {}, .encrypts = true};
  TcpTransport& zero = ranks.Add(0, encrypted);
  TcpTransport& two = ranks.Add(2, encrypted);
  const TcpAddress address = ranks.AddressOf(0);
  const auto meeting =
      Meet(ranks, context->get(), address, {Rank{1}, Rank{0}, true, std::nullopt}, address.secret);
  ASSERT_EQ(meeting->stage(), Meeting::Stage::kMet);
  const std::unique_ptr<TcpStream> stream = meeting->TakeStream();
  std::vector<std::byte> landing(500000);
  std::optional<absl::Status> ended;
  zero.Receive(Rank{1}, kTcpTag, absl::MakeSpan(landing),
               [&](absl::Status status) { ended = status; });
  const EncodedRecordHeader header = Encode(RecordHeader{RecordKind::kFrames, 16});
  std::vector<std::byte> record(header.begin(), header.end());
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
    TcpRanks ranks(2);
    const TcpTransportOptions options{
        .local_address = "127.0.0.1", .ports = {}, .encrypts = encrypts};
    TcpTransport& zero = ranks.Add(0, options);
    TcpTransport& one = ranks.Add(1, options);
    ranks.Exchange(zero, 0, one, 1);
    std::vector<std::byte> landing(1000);
    std::optional<absl::Status> received, sent;
    zero.Receive(Rank{1}, kTcpTag, absl::MakeSpan(landing),
                 [&](absl::Status status) { received = status; });
    for (int i = 0; i < 100; ++i) zero.Progress();
    ASSERT_GE(zero.Descriptor(), 0);
    EXPECT_FALSE(CanRead(zero.Descriptor()));
    const std::vector<std::byte> said(1000);
    one.Send(Rank{0}, kTcpTag, said, [&](absl::Status status) { sent = status; });
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
    TcpRanks ranks(2);
    TcpTransport& zero = ranks.Add(0);
    const TcpAddress address = ranks.AddressOf(0);
    const auto meeting = Meet(ranks, context->get(), address,
                              {Rank{1}, Rank{0}, false, std::nullopt}, address.secret);
    std::unique_ptr<TcpStream> stream = meeting->TakeStream();
    std::vector<std::byte> landing(500000);
    std::optional<absl::Status> ended;
    zero.Receive(Rank{1}, kTcpTag, absl::MakeSpan(landing),
                 [&](absl::Status status) { ended = status; });
    const EncodedHeader header = Encode({FrameKind::kData, kTcpTag.Encode(), landing.size()});
    std::vector<std::byte> said(header.begin(), header.end());
    said.resize(bytes);
    for (int i = 0; i < 10; ++i) zero.Progress();
    EXPECT_EQ(Write(*stream, said), said.size());
    for (int i = 0; i < 100; ++i) zero.Progress();
    EXPECT_FALSE(ended.has_value());
    testing::internal::CaptureStderr();
    stream.reset();
    ASSERT_TRUE(ranks.DriveUntil([&] { return ended.has_value(); }));
    EXPECT_EQ(SuspectRank(*ended), Rank{1}) << *ended;
    EXPECT_THAT(std::string(ended->message()), HasSubstr("in the middle of a message (its end is"));
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("rank 0 has lost rank 1: its connection ended"));
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  }
}

TEST(TcpRank, GoesWithoutAWordWhenNobodyWaitsForIt) {
  const auto context = NewTlsContext();
  TcpRanks ranks(3);
  TcpTransport& zero = ranks.Add(0);
  TcpTransport& two = ranks.Add(2);
  const TcpAddress address = ranks.AddressOf(0);
  const auto meeting =
      Meet(ranks, context->get(), address, {Rank{1}, Rank{0}, false, std::nullopt}, address.secret);
  testing::internal::CaptureStderr();
  meeting->TakeStream().reset();
  ranks.Exchange(zero, 0, two, 2);
  // Who is busy with others does not look at what is not waited for.
  constexpr int kIdleTurns = 1000;
  for (int i = 0; i < kIdleTurns; ++i) zero.Progress();
  std::vector<std::byte> landing(10);
  std::optional<absl::Status> ended;
  zero.Receive(Rank{1}, kTcpTag, absl::MakeSpan(landing),
               [&](absl::Status status) { ended = status; });
  EXPECT_TRUE(ranks.DriveUntil([&] { return ended.has_value(); }));
  EXPECT_EQ(SuspectRank(*ended), Rank{1}) << *ended;
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(TcpRank, SaysThatEncryptionDiffers) {
  TcpRanks ranks(2);
  TcpTransport& zero = ranks.Add(0);
  ranks.Add(1, {.local_address = "127.0.0.1", .ports = {}, .encrypts = true});
  std::vector<std::byte> landing(10);
  std::optional<absl::Status> ended;
  zero.Receive(Rank{1}, kTcpTag, absl::MakeSpan(landing),
               [&](absl::Status status) { ended = status; });
  ASSERT_TRUE(ranks.DriveUntil([&] { return ended.has_value(); }));
  EXPECT_EQ(SuspectRank(*ended), Rank{1});
  EXPECT_THAT(std::string(ended->message()), HasSubstr("COORDD_DATA_ENCRYPTION is on there"));
}

TEST(TcpRank, ListensOnPortsOfItsRange) {
  TcpRanks ranks(2);
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
  TcpRanks ranks(kPeers + 1);
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
    zero.Receive(Rank{i}, kTcpTag, absl::MakeSpan(landings).subspan(static_cast<size_t>(i - 1), 1),
                 [&](absl::Status status) { received += status.ok() ? 1 : 0; });
  }
  const EncodedHeader header = Encode({FrameKind::kSmall, kTcpTag.Encode(), 1});
  std::vector<std::byte> message(header.begin(), header.end());
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
}  // namespace coordd::tcp_ranks
