#include "worker/transport/tcp/message_link.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr size_t kLarge = kSmallBytesMax + 1;

Bytes Filled(size_t size, int value) { return Bytes(size, static_cast<std::byte>(value)); }

// A rank's end of a link, and what it has begun.
class End {
 public:
  explicit End(Rank peer) : link(peer, memory) {}
  ~End() {
    link.End(absl::AbortedError("over"));
    memory.CallEnded();
  }

  size_t Send(uint64_t tag, const Bytes& bytes) {
    TcpOperation& operation = Begin(tag, bytes.size());
    operation.bytes = bytes.data();
    link.Send(operation);
    return statuses.size() - 1;
  }
  size_t Receive(uint64_t tag, Bytes& bytes) {
    TcpOperation& operation = Begin(tag, bytes.size());
    operation.landing = bytes.data();
    link.Receive(operation);
    return statuses.size() - 1;
  }
  // What it has to say, all of it.
  Bytes Say(size_t at_most = SIZE_MAX) {
    Bytes said;
    std::array<iovec, 8> parts;
    while (said.size() < at_most) {
      const size_t count = link.outbox().Gather(absl::MakeSpan(parts));
      if (count == 0) break;
      const size_t before = said.size();
      for (size_t i = 0; i < count; ++i) {
        const auto* const begin = static_cast<const std::byte*>(parts[i].iov_base);
        said.insert(said.end(), begin, begin + parts[i].iov_len);
      }
      said.resize(std::min(said.size(), at_most));
      link.Wrote(said.size() - before, /*has_left=*/true);
    }
    return said;
  }
  absl::Status Hear(const Bytes& bytes) {
    const absl::Status heard = link.reader().Take(bytes);
    memory.CallEnded();
    return heard;
  }
  absl::Status Hear(const FrameHeader& header) {
    const EncodedHeader bytes = Encode(header);
    return Hear(Bytes(bytes.begin(), bytes.end()));
  }
  bool ended(size_t index) { return Status(index).has_value(); }
  std::optional<absl::Status>& Status(size_t index) {
    memory.CallEnded();
    return statuses[index];
  }

  LinkMemory memory;
  MessageLink link;
  std::deque<std::optional<absl::Status>> statuses;

 private:
  TcpOperation& Begin(uint64_t tag, size_t size) {
    TcpOperation& operation = memory.NewOperation();
    operation.tag = tag;
    operation.size_bytes = size;
    statuses.emplace_back();
    operation.done = [this, index = statuses.size() - 1](absl::Status status) {
      EXPECT_FALSE(statuses[index].has_value());
      statuses[index] = std::move(status);
    };
    return operation;
  }
};

struct Pair {
  End a{Rank{1}}, b{Rank{0}};

  // Until nobody has anything to say.
  void Talk() {
    for (bool goes_on = true; goes_on;) {
      const Bytes from_a = a.Say(), from_b = b.Say();
      EXPECT_TRUE(b.Hear(from_a).ok());
      EXPECT_TRUE(a.Hear(from_b).ok());
      goes_on = !from_a.empty() || !from_b.empty();
    }
  }
};

TEST(MessageLink, SendsLargeMessagesWhenTheirReceiveIsThereAndSmallOnesAtOnce) {
  Pair pair;
  const Bytes large = Filled(kLarge, 1), small = Filled(kSmallBytesMax, 2);
  const size_t sent_large = pair.a.Send(7, large), sent_small = pair.a.Send(7, small);
  pair.Talk();
  EXPECT_FALSE(pair.a.ended(sent_large));
  EXPECT_TRUE(pair.a.ended(sent_small));
  Bytes large_here(kLarge), small_here(kSmallBytesMax);
  pair.b.Receive(7, large_here);
  pair.b.Receive(7, small_here);
  pair.Talk();
  EXPECT_EQ(*pair.a.Status(sent_large), absl::OkStatus());
  EXPECT_EQ(large_here, large);
  EXPECT_EQ(small_here, small);
}

// Who reads the connection then reads no more than a header that has no place yet.
TEST(MessageLink, ExpectsMuchAsLongAsALongMessageIsToBeReceived) {
  End a(Rank{1}), b(Rank{0});
  Bytes shorter(MessageLink::kAsideBytesMax), longer(MessageLink::kAsideBytesMax + 1);
  a.Receive(1, shorter);
  EXPECT_FALSE(a.link.expects_much());
  a.Receive(2, longer);
  EXPECT_TRUE(a.link.expects_much());
  const Bytes sent = Filled(longer.size(), 7);
  b.Send(2, sent);
  EXPECT_TRUE(a.Hear(b.Say()).ok());
  EXPECT_EQ(longer, sent);
  EXPECT_FALSE(a.link.expects_much());
  Bytes large(kLarge);
  a.Receive(3, large);
  EXPECT_TRUE(a.link.expects_much());
}

TEST(MessageLink, HoldsWhatThePeerWouldHaveToKeepUntilThatHasTakenMore) {
  Pair pair;
  constexpr int kMessages = 60;  // of 256 KiB: more than the bound
  std::deque<Bytes> sent, received;
  std::vector<size_t> sends;
  for (int i = 0; i < kMessages; ++i)
    sends.push_back(pair.a.Send(3, sent.emplace_back(Filled(kSmallBytesMax, i % 251))));
  pair.Talk();
  EXPECT_TRUE(pair.a.ended(sends.front()));
  EXPECT_FALSE(pair.a.ended(sends.back()));
  EXPECT_TRUE(pair.a.link.is_holding());
  // In its order, also what there would be room for.
  const Bytes tiny = Filled(1, 3);
  sends.push_back(pair.a.Send(3, tiny));
  pair.Talk();
  EXPECT_FALSE(pair.a.ended(sends.back()));
  for (int i = 0; i < kMessages; ++i) pair.b.Receive(3, received.emplace_back(kSmallBytesMax));
  Bytes tiny_here(1);
  pair.b.Receive(3, tiny_here);
  pair.Talk();
  EXPECT_EQ(received, sent);
  EXPECT_EQ(tiny_here, tiny);
  EXPECT_FALSE(pair.a.link.is_holding());
  for (const size_t send : sends) EXPECT_EQ(*pair.a.Status(send), absl::OkStatus());
  // What was taken is room again.
  const size_t later = pair.a.Send(4, sent.front());
  pair.Talk();
  EXPECT_TRUE(pair.a.ended(later));
}

// What the peer keeps is received behind what is held.
TEST(MessageLink, AsksForWhatIsHeldWhereThePeerTakesNothing) {
  Pair pair;
  std::deque<Bytes> sent;
  for (uint64_t bytes = 0; bytes <= MessageLink::kUnprovenBytesMax; bytes += kSmallBytesMax)
    pair.a.Send(3, sent.emplace_back(Filled(kSmallBytesMax, 1)));
  const Bytes first = Filled(100, 4);
  const size_t held = pair.a.Send(4, first);
  Bytes first_here(first.size());
  pair.b.Receive(4, first_here);
  pair.Talk();
  EXPECT_FALSE(pair.a.ended(held));
  pair.a.link.AskForHeld();
  EXPECT_FALSE(pair.a.link.is_holding());
  pair.Talk();
  EXPECT_EQ(*pair.a.Status(held), absl::OkStatus());
  EXPECT_EQ(first_here, first);
  // One that was asked for is received in its order, too.
  std::deque<Bytes> received;
  for (size_t i = 0; i < sent.size(); ++i) pair.b.Receive(3, received.emplace_back(kSmallBytesMax));
  pair.Talk();
  EXPECT_EQ(received, sent);
}

TEST(MessageLink, EndsWhatIsHeldWithThePeer) {
  End a(Rank{1});
  const Bytes payload = Filled(kSmallBytesMax, 1);
  size_t last = 0;
  while (!a.link.is_holding()) last = a.Send(5, payload);
  a.link.End(absl::UnavailableError("gone"));
  EXPECT_EQ(*a.Status(last), absl::UnavailableError("gone"));
}

TEST(MessageLink, SaysBothOfWhichSizeAMessageIs) {
  for (const size_t size : {size_t{100}, kLarge}) {
    for (const bool late : {false, true}) {
      Pair pair;
      const Bytes sent = Filled(size, 1);
      Bytes received(size + 1);
      size_t receive = 0, send = 0;
      if (!late) receive = pair.b.Receive(1, received);
      if (!late) pair.Talk();
      send = pair.a.Send(1, sent);
      pair.Talk();
      if (late) receive = pair.b.Receive(1, received);
      pair.Talk();
      ASSERT_TRUE(pair.b.ended(receive));
      EXPECT_TRUE(absl::IsInternal(*pair.b.Status(receive)));
      EXPECT_THAT(std::string(pair.b.Status(receive)->message()),
                  HasSubstr(absl::StrCat("has ", size, " bytes, expected ", size + 1)));
      EXPECT_TRUE(pair.a.ended(send));
      // And goes on.
      Bytes more(size);
      pair.b.Receive(2, more);
      pair.a.Send(2, sent);
      pair.Talk();
      EXPECT_EQ(more, sent);
    }
  }
}

TEST(MessageLink, BelievesNoLengthThatItHasNotSaid) {
  const auto refuses = [](const FrameHeader& header) {
    End end(Rank{1});
    Bytes large(kLarge), small(10);
    end.Receive(1, large);
    end.Receive(1, small);
    const absl::Status status = end.Hear(header);
    EXPECT_FALSE(end.ended(0) && end.Status(0)->ok());
    return !status.ok();
  };
  EXPECT_TRUE(refuses({FrameKind::kData, 1, kLarge + 1}));
  EXPECT_TRUE(refuses({FrameKind::kData, 1, kMessageBytesMax}));
  EXPECT_TRUE(refuses({FrameKind::kData, 1, kMessageBytesMax + 1}));
  EXPECT_TRUE(refuses({FrameKind::kData, 2, kLarge}));   // nobody waits for it
  EXPECT_TRUE(refuses({FrameKind::kData, 1, 10}));       // or has asked
  EXPECT_TRUE(refuses({FrameKind::kSmall, 1, kLarge}));  // larger than small
  EXPECT_TRUE(refuses({FrameKind::kSmall, 1, UINT64_MAX}));
  EXPECT_TRUE(refuses({FrameKind::kReady, 1, 10}));  // of what nobody has asked for
  EXPECT_TRUE(refuses({FrameKind::kTaken, 0, 1}));   // more than was ever sent
  EXPECT_TRUE(refuses({FrameKind::kTaken, 1, 0}));
  EXPECT_TRUE(refuses({FrameKind::kOtherSize, 2, 10}));
  EXPECT_TRUE(refuses({FrameKind::kRefused, 1, 10}));
  EXPECT_TRUE(refuses({FrameKind::kWelcome, 0, 0}));
  EXPECT_TRUE(refuses({static_cast<FrameKind>(0), 0, 0}));
  EXPECT_TRUE(refuses({static_cast<FrameKind>(77), 0, 0}));
  EXPECT_FALSE(refuses({FrameKind::kData, 1, kLarge}));
  EXPECT_FALSE(refuses({FrameKind::kReady, 1, kLarge}));
}

TEST(MessageLink, BelievesNoHeaderWhoseFillingIsNotZeros) {
  const EncodedHeader header = Encode({FrameKind::kSmall, 1, 10});
  for (size_t at = 1; at < header.size(); ++at) {
    if (at == 3) at = 16;  // what it says is in between
    End end(Rank{1});
    Bytes bytes(header.begin(), header.end());
    bytes[at] = std::byte{1};
    EXPECT_THAT(std::string(end.Hear(bytes).message()),
                HasSubstr("of kind 3 whose filling is not zeros"))
        << at;
  }
}

TEST(MessageLink, KeepsNoMoreThanItsBound) {
  End end(Rank{1});
  const Bytes payload = Filled(kSmallBytesMax, 1);
  absl::Status heard;
  uint64_t kept = 0;
  for (; heard.ok() && kept < 2 * MessageLink::kUnprovenBytesMax; kept += payload.size()) {
    heard = end.Hear({FrameKind::kSmall, 5, payload.size()});
    if (heard.ok()) heard = end.Hear(payload);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(heard)) << heard;
  EXPECT_LE(kept, MessageLink::kUnprovenBytesMax + payload.size());
  // Nor empty ones without end, nor questions and receives.
  for (const FrameKind kind : {FrameKind::kSmall, FrameKind::kAsk, FrameKind::kReady}) {
    End other(Rank{1});
    const uint64_t size = kind == FrameKind::kReady ? kLarge : 0;
    absl::Status status;
    int64_t heard_of = 0;
    for (; status.ok() && heard_of < 2 * MessageLink::kEarlyMax; ++heard_of)
      status = other.Hear({kind, 5, size});
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  }
}

// Wherever it ends: what was whole is received, and what was not ends with the peer.
TEST(MessageLink, EndsWhatWasInTheMiddleOfAFrame) {
  for (const bool early : {false, true}) {
    for (const size_t size : {size_t{1000}, kLarge}) {
      Pair pair;
      const Bytes first = Filled(10, 1), second = Filled(size, 2);
      Bytes first_here(10), second_here(size);
      if (early || size == kLarge) pair.b.Receive(9, second_here);
      EXPECT_TRUE(pair.a.Hear(pair.b.Say()).ok());
      pair.a.Send(8, first);
      pair.a.Send(9, second);
      EXPECT_TRUE(
          pair.b.Hear(pair.a.Say(FrameHeader::kBytes + 10 + FrameHeader::kBytes + 500)).ok());
      pair.b.link.End(absl::UnavailableError("gone"));
      const size_t kept = pair.b.Receive(8, first_here);
      if (!early && size != kLarge) pair.b.Receive(9, second_here);
      EXPECT_EQ(*pair.b.Status(kept), absl::OkStatus());
      EXPECT_EQ(first_here, first);
      for (size_t i = 0; i < pair.b.statuses.size(); ++i) {
        ASSERT_TRUE(pair.b.ended(i));
        if (i != kept) {
          EXPECT_TRUE(absl::IsUnavailable(*pair.b.Status(i)));
        }
      }
    }
  }
}

TEST(MessageLink, IsReadInWhateverPiecesItComes) {
  for (const size_t piece : {size_t{1}, size_t{15}, size_t{17}, size_t{4096}}) {
    Pair pair;
    const Bytes large = Filled(kLarge + 5, 1), small = Filled(77, 2), empty;
    Bytes large_here(large.size()), small_here(small.size()), empty_here;
    pair.b.Receive(1, large_here);
    EXPECT_TRUE(pair.a.Hear(pair.b.Say()).ok());
    pair.a.Send(1, empty);
    pair.a.Send(1, large);
    pair.a.Send(1, small);
    const Bytes said = pair.a.Say();
    for (size_t at = 0; at < said.size(); at += piece) {
      const size_t end = std::min(said.size(), at + piece);
      EXPECT_TRUE(pair.b
                      .Hear(Bytes(said.begin() + static_cast<std::ptrdiff_t>(at),
                                  said.begin() + static_cast<std::ptrdiff_t>(end)))
                      .ok());
    }
    pair.b.Receive(1, empty_here);
    pair.b.Receive(1, small_here);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(*pair.b.Status(i), absl::OkStatus());
    EXPECT_EQ(large_here, large);
    EXPECT_EQ(small_here, small);
  }
}

}  // namespace
}  // namespace coordd
