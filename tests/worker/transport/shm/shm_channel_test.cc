// The protocol of one pair of ranks, over two rings in plain memory.
#include "worker/transport/shm/shm_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "tests/worker/support/reference.h"
#include "worker/base/aligned_buffer.h"
#include "worker/interfaces/peer_status.h"

namespace coordd {
namespace {

using testing::HasSubstr;

constexpr int64_t kCapacity = 32 << 10;

class ShmChannelTest : public testing::Test {
 protected:
  ShmChannelTest() {
    std::memset(to_b_.data(), 0, static_cast<size_t>(to_b_.size_bytes()));
    std::memset(to_a_.data(), 0, static_cast<size_t>(to_a_.size_bytes()));
  }

  // An operation that records how it ended.
  ShmChannel::Done Into(std::optional<absl::Status>& status) {
    return [&status](absl::Status ended) { status = std::move(ended); };
  }
  static bool Turn(ShmChannel& channel) {
    ShmChannel::Finished finished;
    const bool moved = channel.Progress(finished);
    for (auto& [done, status] : finished) std::move(done)(std::move(status));
    return moved;
  }
  void Settle() {
    while (Turn(a_) || Turn(b_)) {
    }
  }

  AlignedBuffer to_b_{ShmRingBytes(kCapacity)};
  AlignedBuffer to_a_{ShmRingBytes(kCapacity)};
  ShmChannel a_{Rank{1}, to_b_.data(), to_a_.data(), kCapacity};
  ShmChannel b_{Rank{0}, to_a_.data(), to_b_.data(), kCapacity};
};

TEST_F(ShmChannelTest, AMessageLargerThanTheRingStreamsThroughIt) {
  const Bytes sent = TestInput(DataType::kUint8, 0, 10 * kCapacity + 5, 1);
  Bytes received(sent.size());
  std::optional<absl::Status> send, receive;
  a_.Send(7, sent, Into(send));
  b_.Receive(7, absl::MakeSpan(received), Into(receive));
  Settle();
  EXPECT_EQ(send, absl::OkStatus());
  EXPECT_EQ(receive, absl::OkStatus());
  EXPECT_TRUE(received == sent);
  EXPECT_TRUE(a_.idle() && b_.idle());
}

TEST_F(ShmChannelTest, SmallMessagesEndAtOnceUntilTheWindowIsFull) {
  constexpr int kMessages = 100;
  const Bytes sent = TestInput(DataType::kUint8, 0, 2000, 1);
  std::vector<std::optional<absl::Status>> sends(kMessages), receives(kMessages);
  for (auto& send : sends) a_.Send(7, sent, Into(send));
  Settle();
  const auto ended = [](const auto& s) { return s.has_value(); };
  EXPECT_EQ(std::count_if(sends.begin(), sends.end(), ended),
            ShmChannel::kEagerWindowBytes / (2000 + ShmChannel::kEagerOverheadBytes));
  std::vector<Bytes> received(kMessages, Bytes(sent.size()));
  for (int i = 0; i < kMessages; ++i) {
    const size_t at = static_cast<size_t>(i);
    b_.Receive(7, absl::MakeSpan(received[at]), Into(receives[at]));
  }
  Settle();
  for (const Bytes& bytes : received) EXPECT_TRUE(bytes == sent);
  EXPECT_TRUE(std::all_of(sends.begin(), sends.end(), ended));
}

TEST_F(ShmChannelTest, AReceiveOfAnEmptyAnnouncedMessageEndsWithItsAnswer) {
  // Whoever has nothing in flight need not call Progress: the answer must be out by then.
  const Bytes filler(ShmChannel::kEagerMaxBytes / 4 + 1);
  std::vector<std::optional<absl::Status>> fillers(100);
  for (auto& filled : fillers) a_.Send(1, filler, Into(filled));
  std::optional<absl::Status> send, receive;
  a_.Send(2, {}, Into(send));
  Settle();
  ASSERT_FALSE(send.has_value());
  b_.Receive(2, {}, Into(receive));
  while (!receive.has_value()) Turn(b_);
  EXPECT_EQ(receive, absl::OkStatus());
  while (Turn(a_)) {
  }
  EXPECT_EQ(send, absl::OkStatus());
}

TEST_F(ShmChannelTest, WhatHasArrivedBeforeThePeerWentIsStillReceived) {
  const Bytes sent = TestInput(DataType::kUint8, 0, 100, 1);
  Bytes received(sent.size());
  std::optional<absl::Status> send, first, second;
  a_.Send(7, sent, Into(send));
  Turn(a_);
  ShmChannel::Finished finished;
  b_.Close(PeerLost(Rank{0}, "gone"), finished);
  b_.Receive(7, absl::MakeSpan(received), Into(first));
  b_.Receive(7, absl::MakeSpan(received), Into(second));
  Turn(b_);
  EXPECT_EQ(first, absl::OkStatus());
  EXPECT_TRUE(received == sent);
  EXPECT_EQ(SuspectRank(*second), Rank{0});
}

TEST_F(ShmChannelTest, AWriterThatWritesNonsenseIsTreatedAsGone) {
  std::optional<absl::Status> receive;
  Bytes received(10);
  b_.Receive(7, absl::MakeSpan(received), Into(receive));
  ShmRingWriter writer(to_b_.data(), kCapacity);
  writer.Write({uint64_t{99} << 56, 0, 0, 0}, {});
  Turn(b_);
  EXPECT_EQ(SuspectRank(*receive), Rank{0});
  EXPECT_THAT(std::string(receive->message()), HasSubstr("unknown kind 99"));
}

TEST_F(ShmChannelTest, ACounterOutOfRangeIsTreatedAsGone) {
  std::optional<absl::Status> receive;
  Bytes received(10);
  b_.Receive(7, absl::MakeSpan(received), Into(receive));
  reinterpret_cast<ShmRingControl*>(to_b_.data())->tail = uint64_t{1} << 60;
  Turn(b_);
  EXPECT_EQ(SuspectRank(*receive), Rank{0});
}

}  // namespace
}  // namespace coordd
