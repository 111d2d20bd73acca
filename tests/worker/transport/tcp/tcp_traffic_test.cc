// What is read of what has come, and what stays with the kernel.
#include "worker/transport/tcp/tcp_traffic.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/owned_fd.h"
#include "worker/transport/tcp/poll_set.h"
#include "worker/transport/tcp/tcp_frame.h"
#include "worker/transport/tcp/tcp_peer.h"

namespace coordd {
namespace {

constexpr uint64_t kTag = 7;
constexpr size_t kBytes = 10000;

class TcpTrafficTest : public testing::Test {
 protected:
  TcpTrafficTest() {
    EXPECT_TRUE(polls_.Open().ok());
    traffic_.Open(
        /*connections=*/1, /*encrypts=*/false, /*first_key=*/0,
        [](TcpConnection&, TcpTraffic::End, const std::string& why) { ADD_FAILURE() << why; });
    std::array<int, 2> pair = {};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair.data()), 0);
    theirs_ = OwnedFd(pair[0]);
    connection_.stream = std::make_unique<TcpStream>(OwnedFd(pair[1]));
    EXPECT_TRUE(polls_.Add(pair[1], 0, EPOLLIN).ok());
    traffic_.Add(connection_);
  }

  // One of kBytes.
  void TheySendAMessage() {
    const EncodedHeader header = Encode({FrameKind::kSmall, kTag, kBytes});
    std::vector<std::byte> message(header.begin(), header.end());
    message.resize(message.size() + kBytes);
    EXPECT_EQ(send(theirs_.get(), message.data(), message.size(), 0), std::ssize(message));
  }
  void ReceiveOne() {
    TcpOperation& operation = memory_.NewOperation();
    operation.tag = kTag;
    operation.size_bytes = kBytes;
    operation.landing = landing_.data();
    operation.done = [this](absl::Status status) { received_ = std::move(status); };
    connection_.link.Receive(operation);
  }
  bool has_received() {
    memory_.CallEnded();
    return received_.has_value() && received_->ok();
  }
  // Bytes that the kernel keeps.
  int left() {
    int bytes = 0;
    EXPECT_EQ(ioctl(connection_.stream->socket(), FIONREAD, &bytes), 0);
    return bytes;
  }
  bool OnReady() { return traffic_.OnReady(connection_, EPOLLIN); }

  LinkMemory memory_;
  PollSet polls_;
  OwnedFd theirs_;
  TcpPeer peer_{Rank{1}, 1, memory_};
  TcpConnection& connection_ = peer_.connection(0);
  TcpTraffic traffic_{polls_};
  std::vector<std::byte> landing_ = std::vector<std::byte>(kBytes);
  std::optional<absl::Status> received_;
};

TEST_F(TcpTrafficTest, LeavesWhatNothingWaitsForWithTheKernelAsLongAsItIsToldTo) {
  TheySendAMessage();
  const int all = left();
  traffic_.LeaveUnexpected(true);
  EXPECT_FALSE(traffic_.ReadUnasked());
  EXPECT_FALSE(OnReady());
  EXPECT_EQ(left(), all);
  traffic_.LeaveUnexpected(false);
  EXPECT_TRUE(traffic_.ReadUnasked());
  EXPECT_EQ(left(), 0);
  ReceiveOne();
  EXPECT_TRUE(has_received());
}

TEST_F(TcpTrafficTest, ReadsWhatIsWaitedForAndNothingBehindIt) {
  // More than one read takes.
  constexpr int kMessages = 2 * MessageLink::kAsideBytesMax / kBytes;
  for (int i = 0; i < kMessages; ++i) TheySendAMessage();
  traffic_.LeaveUnexpected(true);
  ReceiveOne();
  EXPECT_TRUE(OnReady());
  EXPECT_TRUE(has_received());
  EXPECT_GT(left(), 0);
  // What stands before what is waited for is read, too.
  for (int i = 1; i < kMessages; ++i) {
    received_.reset();
    ReceiveOne();
    traffic_.ReadUnasked();
    EXPECT_TRUE(has_received()) << i;
  }
  EXPECT_EQ(left(), 0);
}

}  // namespace
}  // namespace coordd
