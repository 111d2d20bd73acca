#include "worker/handover/shm_handover.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/thread.h"
#include "common/protocol/store_memory.h"
#include "tests/worker/support/rank_group.h"
#include "worker/base/unix_message.h"
#include "worker/handover/shm_segment.h"

namespace coordd {
namespace {

constexpr char kName[] = "coordd-handover-test";
constexpr char kSecret[] = "0123456789abcdef0123456789abcdef";

absl::Time Limit() { return Clock::Real().Now() + kGroupHangLimit; }

// Waits until somebody connects.
OwnedFd AcceptSomebody(int listener) {
  OwnedFd socket;
  while (!(socket = AcceptUnix(listener)).valid()) std::this_thread::yield();
  return socket;
}

UnixMessage ReceiveSomething(int socket) {
  while (true) {
    absl::StatusOr<std::optional<UnixMessage>> message = ReceiveUnixMessage(socket);
    EXPECT_TRUE(message.ok()) << message.status();
    if (!message.ok()) return {};
    if (message->has_value()) return **std::move(message);
    std::this_thread::yield();
  }
}

// Rank 1 hands over to a rank 0 that the test plays: `store_` has name and secret of its socket.
class HandoverToRankZero : public testing::Test {
 protected:
  HandoverToRankZero() {
    absl::StatusOr<OwnedFd> listener = ListenUnix(name_, 256);
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    absl::StatusOr<ShmSegment> segment = ShmSegment::Create(4096);
    EXPECT_TRUE(segment.ok()) << segment.status();
    segment_ = *std::move(segment);
    EXPECT_TRUE(store_.Set("shm/0", absl::StrCat(name_, " ", kSecret), Limit()).ok());
  }

  std::thread StartRankOne() {
    return StartThread("rank-1", [this] {
      result_ =
          HandOverSegments({.self = Rank{1}, .others = {Rank{0}}, .segment_fd = segment_.fd()},
                           store_, Clock::Real(), Limit());
    });
  }

  // Names of abstract sockets are shared by all processes of the machine.
  const std::string name_ = absl::StrCat(kName, "-", getpid());
  InMemoryStore store_;
  OwnedFd listener_;
  ShmSegment segment_;
  absl::StatusOr<std::vector<ShmPeer>> result_ = absl::UnknownError("not run");
};

TEST_F(HandoverToRankZero, WhoIsTurnedAwayConnectsAgain) {
  std::thread rank_one = StartRankOne();
  for (int i = 0; i < 3; ++i) AcceptSomebody(listener_.get());  // turns it away at once
  ReceiveSomething(AcceptSomebody(listener_.get()).get());      // turns it away behind its hello
  const OwnedFd socket = AcceptSomebody(listener_.get());
  const std::vector<std::string> words = absl::StrSplit(ReceiveSomething(socket.get()).text, ' ');
  ASSERT_GE(words.size(), 2u);
  EXPECT_EQ(words[0], kSecret);
  EXPECT_EQ(words[1], "1");
  EXPECT_TRUE(SendUnixMessage(socket.get(), absl::StrCat(kSecret, " 0 "), segment_.fd()).ok());
  rank_one.join();
  ASSERT_TRUE(result_.ok()) << result_.status();
  ASSERT_EQ(result_->size(), 1u);
  EXPECT_TRUE((*result_)[0].segment.valid());
}

TEST_F(HandoverToRankZero, WhoseListenerIsGoneIsLost) {
  std::thread rank_one = StartRankOne();
  AcceptSomebody(listener_.get());
  listener_ = OwnedFd();
  rank_one.join();
  EXPECT_TRUE(absl::IsUnavailable(result_.status())) << result_.status();
}

}  // namespace
}  // namespace coordd
