// Several connections between two ranks: what goes over which, and how they end together.
#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_clock.h"
#include "tests/worker/transport/tcp/tcp_ranks.h"
#include "worker/interfaces/peer_status.h"

namespace coordd::tcp_ranks {
namespace {

using testing::HasSubstr;

constexpr int32_t kConnections = 4;

TcpTransportOptions Several(bool encrypts = false) {
  return {.local_address = "127.0.0.1",
          .ports = {},
          .encrypts = encrypts,
          .connections = kConnections,
          .turned_away = std::make_shared<std::atomic<int64_t>>(0)};
}

Tag OfSegment(int64_t segment) { return {LaneId{0}, 1, 0, segment}; }

LinkIdentity One(int32_t number, bool encrypts = false) {
  return {Rank{1}, Rank{0}, encrypts, std::nullopt, number};
}

// Rank 0 of two, and what has called it as rank 1.
class Pair {
 public:
  explicit Pair(bool encrypts = false, Clock& clock = Clock::Real())
      : options(Several(encrypts)), zero(ranks.Add(0, options, clock)) {
    const TcpAddress address = ranks.AddressOf(0);
    const auto context = NewTlsContext();
    for (int32_t number = 0; number < kConnections; ++number) {
      const auto meeting =
          Meet(ranks, context->get(), address, One(number, encrypts), address.secret);
      EXPECT_EQ(meeting->stage(), Meeting::Stage::kMet) << number;
      streams.push_back(meeting->TakeStream());
    }
  }
  // A small message of one byte.
  void Say(int32_t number, uint8_t byte) {
    const EncodedHeader header = Encode({FrameKind::kSmall, kTcpTag.Encode(), 1});
    std::vector<std::byte> message(header.begin(), header.end());
    message.push_back(std::byte{byte});
    EXPECT_EQ(Write(*streams[static_cast<size_t>(number)], message), message.size());
  }
  // Begins a receive of one.
  size_t Receive(int64_t segment) {
    landings.emplace_back();
    std::optional<absl::Status>& ended = statuses.emplace_back();
    zero.Receive(Rank{1}, OfSegment(segment), absl::MakeSpan(&landings.back(), 1),
                 [&ended](absl::Status status) {
                   EXPECT_FALSE(ended.has_value());
                   ended = std::move(status);
                 });
    return statuses.size() - 1;
  }
  absl::Status Await(size_t index) {
    ranks.DriveUntil([&] { return statuses[index].has_value(); });
    return statuses[index].value_or(absl::UnknownError("it hangs"));
  }

  TcpRanks ranks{2};
  const TcpTransportOptions options;
  TcpTransport& zero;
  std::vector<std::unique_ptr<TcpStream>> streams;
  std::deque<std::byte> landings;
  std::deque<std::optional<absl::Status>> statuses;
};

TEST(TcpConnections, TakeTheSegmentsOfATransferInTurn) {
  for (const bool encrypts : {false, true}) {
    Pair pair(encrypts);
    for (const int64_t segment : {3, 0, 2, 1, 4, 13}) pair.Receive(segment);
    for (const int32_t number : {0, 1, 2, 3, 0, 1}) {
      pair.Say(number, static_cast<uint8_t>(10 + number));
    }
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(pair.Await(i), absl::OkStatus());
    EXPECT_THAT(pair.landings, testing::ElementsAre(std::byte{13}, std::byte{10}, std::byte{12},
                                                    std::byte{11}, std::byte{10}, std::byte{11}));
    EXPECT_EQ(*pair.options.turned_away, 0);
  }
}

// Who has made the first one makes the others; a size that is not the receiver's is told all the
// same.
TEST(TcpConnections, AreMadeByThoseWhoNeedThem) {
  for (const bool both : {false, true}) {
    TcpRanks ranks(2);
    const TcpTransportOptions options = Several();
    TcpTransport& zero = ranks.Add(0, options);
    TcpTransport& one = ranks.Add(1, options);
    if (both) ranks.Exchange(one, 1, zero, 0);
    for (int64_t segment = 0; segment < 2 * kConnections; ++segment) {
      for (const size_t expected : {size_t{1000}, size_t{999}}) {
        std::vector<std::byte> sent(1000, static_cast<std::byte>(segment)), received(expected);
        std::optional<absl::Status> sent_status, received_status;
        zero.Send(Rank{1}, OfSegment(segment), sent,
                  [&](absl::Status status) { sent_status = status; });
        one.Receive(Rank{0}, OfSegment(segment), absl::MakeSpan(received),
                    [&](absl::Status status) { received_status = status; });
        ASSERT_TRUE(ranks.DriveUntil([&] { return sent_status && received_status; }));
        EXPECT_EQ(*sent_status, absl::OkStatus());
        if (expected == sent.size()) {
          EXPECT_EQ(*received_status, absl::OkStatus());
          EXPECT_EQ(received, sent);
        } else {
          EXPECT_TRUE(absl::IsInternal(*received_status)) << *received_status;
          EXPECT_THAT(std::string(received_status->message()), HasSubstr("1000 bytes"));
        }
      }
    }
    EXPECT_EQ(*options.turned_away, 0);
  }
}

// Whichever is the first to end: nothing that has come is lost, and the loss is told once.
TEST(TcpConnections, EndTogetherBehindWhatTheyHaveBrought) {
  for (int32_t first = 0; first < kConnections; ++first) {
    Pair pair;
    const size_t unsaid = pair.Receive(first);
    testing::internal::CaptureStderr();
    pair.streams[static_cast<size_t>(first)].reset();
    for (int i = 0; i < 200; ++i) pair.zero.Progress();
    const int32_t other = (first + 1) % kConnections;
    pair.Say(other, 77);
    pair.Say(other, 78);
    for (const auto& stream : pair.streams)
      if (stream != nullptr) stream->EndSending();
    const size_t said = pair.Receive(other);
    EXPECT_EQ(pair.Await(said), absl::OkStatus());
    EXPECT_EQ(pair.landings[said], std::byte{77});
    const absl::Status lost = pair.Await(unsaid);
    EXPECT_EQ(SuspectRank(lost), Rank{1}) << lost;
    EXPECT_THAT(std::string(lost.message()),
                HasSubstr(absl::StrCat(", connection ", first + 1, " of 4)")));
    // What has come is still received, and nothing else is, over none of them.
    const size_t kept = pair.Receive(other);
    EXPECT_EQ(pair.Await(kept), absl::OkStatus());
    EXPECT_EQ(pair.landings[kept], std::byte{78});
    for (int64_t segment = 0; segment < kConnections; ++segment)
      EXPECT_EQ(pair.Await(pair.Receive(segment)), lost);
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_THAT(log, HasSubstr("rank 0 has lost rank 1: its connection ended"));
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  }
}

// The peer's other connections hear that this rank has given it up, and are not waited for long.
TEST(TcpConnections, DoNotKeepAPeerThatHasLostOne) {
  FakeClock clock(absl::UnixEpoch());
  Pair pair(/*encrypts=*/false, clock);
  const size_t unsaid = pair.Receive(2);
  pair.streams[1].reset();
  std::array<std::byte, 16> room;
  TcpStream::Got got;
  ASSERT_TRUE(pair.ranks.DriveUntil([&] {
    got = pair.streams[0]->Read({}, absl::MakeSpan(room));
    return got.is_over;
  }));
  EXPECT_FALSE(pair.statuses[unsaid].has_value());
  clock.Advance(absl::Seconds(2));
  EXPECT_EQ(SuspectRank(pair.Await(unsaid)), Rank{1});
}

TEST(TcpConnections, EndAtOnceWhereThePeerLies) {
  Pair pair;
  const size_t unsaid = pair.Receive(2);
  const EncodedHeader lie = Encode({FrameKind::kTaken, 0, 77});
  EXPECT_EQ(Write(*pair.streams[3], lie), lie.size());
  const absl::Status lost = pair.Await(unsaid);
  EXPECT_EQ(SuspectRank(lost), Rank{1});
  EXPECT_THAT(std::string(lost.message()), HasSubstr("it has sent"));
  EXPECT_EQ(pair.Await(pair.Receive(0)), lost);
}

TEST(TcpConnections, AreAsManyOnAllRanks) {
  TcpRanks ranks(2);
  TcpTransport& zero = ranks.Add(0, Several());
  TcpTransport& one = ranks.Add(1);
  std::vector<std::byte> landing(10);
  for (TcpTransport* const rank : {&zero, &one}) {
    std::optional<absl::Status> ended;
    const int32_t other = rank == &zero ? 1 : 0;
    rank->Receive(Rank{other}, kTcpTag, absl::MakeSpan(landing),
                  [&](absl::Status status) { ended = status; });
    ASSERT_TRUE(ranks.DriveUntil([&] { return ended.has_value(); }));
    EXPECT_EQ(SuspectRank(*ended), Rank{other});
    EXPECT_THAT(std::string(ended->message()),
                HasSubstr(other == 1 ? "COORDD_TCP_CONNECTIONS is 1 on rank 1 and 4 on rank 0: all "
                                       "ranks must choose alike"
                                     : "COORDD_TCP_CONNECTIONS is 4 on rank 0 and 1 on rank 1: all "
                                       "ranks must choose alike"));
  }
}

// Of a number that there is not, that is there already, or whose turn it is not: nothing is
// welcomed, and what was said for one number is worth nothing for another.
TEST(TcpConnections, AreBelievedInTheirOrderAndOnce) {
  const auto context = NewTlsContext();
  TcpRanks ranks(3);
  const TcpTransportOptions options = Several();
  TcpTransport& zero = ranks.Add(0, options);
  TcpTransport& two = ranks.Add(2, options);
  const TcpAddress address = ranks.AddressOf(0);
  const auto meets = [&](int32_t number) {
    const auto meeting = Meet(ranks, context->get(), address, One(number), address.secret);
    return std::pair(meeting->stage(), meeting->TakeStream());
  };
  EXPECT_EQ(meets(1).first, Meeting::Stage::kEnded);
  const auto first = meets(0);
  EXPECT_EQ(first.first, Meeting::Stage::kMet);
  EXPECT_EQ(meets(0).first, Meeting::Stage::kEnded);
  EXPECT_EQ(meets(2).first, Meeting::Stage::kEnded);
  EXPECT_EQ(meets(kConnections).first, Meeting::Stage::kFailed);
  const auto second = meets(1);
  EXPECT_EQ(second.first, Meeting::Stage::kMet);
  EXPECT_EQ(*options.turned_away, 1);

  OwnedFd socket = ConnectTo(address);
  TlsHandshake other = TlsHandshake::Connecting(context->get(), socket.get(), One(2).ToText(),
                                                DeriveKey(address.secret, One(1).ToText()));
  Meeting replayed(std::move(socket), std::move(other), /*connects=*/true, /*encrypts=*/false);
  ranks.DriveUntil([&] {
    const Meeting::Stage stage = replayed.Step();
    return stage == Meeting::Stage::kFailed || stage == Meeting::Stage::kEnded;
  });
  EXPECT_EQ(*options.turned_away, 2);
  ranks.Exchange(zero, 0, two, 2);
}

}  // namespace
}  // namespace coordd::tcp_ranks
