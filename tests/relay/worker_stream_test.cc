#include "relay/worker_stream.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/owned_fd.h"
#include "coordd/v1/session.grpc.pb.h"
#include "tests/support/fake_clock.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Serves one stream, which nobody hears.
class OneStream final
    : public v1::Coordinator::WithRawCallbackMethod_Session<v1::Coordinator::Service> {
 public:
  explicit OneStream(Clock& clock) : clock_(clock) {}

  std::shared_ptr<WorkerStream> Await() {
    while (!there_.load()) std::this_thread::yield();
    return stream_;
  }

 private:
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Session(
      grpc::CallbackServerContext* context) override {
    stream_ =
        std::make_shared<WorkerStream>(StreamId{1}, context, nullptr, WorkerPatience(), clock_);
    stream_->Begin(stream_, nullptr);
    there_.store(true);
    return stream_.get();
  }

  Clock& clock_;
  std::shared_ptr<WorkerStream> stream_;
  std::atomic<bool> there_ = false;
};

// A connection in between, of which one direction passes as many bytes as it is let.
class SlowLink {
 public:
  SlowLink(const std::string& here, const std::string& there)
      : listener_(socket(AF_UNIX, SOCK_STREAM, 0)), out_(socket(AF_UNIX, SOCK_STREAM, 0)) {
    const sockaddr_un to = Address(there);
    const sockaddr_un at = Address(here);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    EXPECT_EQ(connect(out_.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~SlowLink() {
    stopping_.store(true);
    thread_.join();
  }
  SlowLink(const SlowLink&) = delete;
  SlowLink& operator=(const SlowLink&) = delete;

  // Lets so many bytes more to the client.
  void Let(int64_t bytes) { let_ += bytes; }
  // Whether all that it was let has passed.
  bool IsUsedUp() const { return let_.load() == 0; }

 private:
  static sockaddr_un Address(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }

  void Run() {
    const OwnedFd in(accept(listener_.get(), nullptr, nullptr));
    while (!stopping_.load()) {
      const int64_t let = let_.load();
      std::array<pollfd, 2> ready = {pollfd{in.get(), POLLIN, 0},
                                     pollfd{let > 0 ? out_.get() : -1, POLLIN, 0}};
      poll(ready.data(), ready.size(), 1);
      if (ready[0].revents != 0 && Pass(in.get(), out_.get(), SSIZE_MAX) <= 0) return;
      if (ready[1].revents == 0) continue;
      const ssize_t passed = Pass(out_.get(), in.get(), let);
      if (passed <= 0) return;
      let_ -= passed;
    }
  }

  static ssize_t Pass(int from, int to, int64_t most) {
    std::array<char, 1 << 16> bytes;
    const ssize_t n = read(from, bytes.data(), std::min<size_t>(bytes.size(), most));
    for (ssize_t sent = 0; sent < n;) {
      const ssize_t m = send(to, bytes.data() + sent, n - sent, MSG_NOSIGNAL);
      if (m <= 0) return -1;
      sent += m;
    }
    return n;
  }

  const OwnedFd listener_, out_;
  std::atomic<int64_t> let_ = 0;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

class WorkerStreamTest : public testing::Test {
 protected:
  WorkerStreamTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("unix:", directory_ / "relay"),
                             grpc::InsecureServerCredentials());
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    link_ = std::make_unique<SlowLink>(directory_ / "link", directory_ / "relay");
    client_ = v1::Coordinator::NewStub(grpc::CreateChannel(
        absl::StrCat("unix:", directory_ / "link"), grpc::InsecureChannelCredentials()));
  }
  ~WorkerStreamTest() override {
    link_->Let(2 * kBytes);
    context_.TryCancel();
    if (reader_.joinable()) reader_.join();
    if (session_ != nullptr) session_->Finish();
    if (stream_ != nullptr) stream_->Close(absl::OkStatus());
    server_->Shutdown(std::chrono::system_clock::now());
  }

  static v1::CoordinatorMessage Message(size_t bytes) {
    v1::CoordinatorMessage message;
    message.mutable_abort()->set_reason(std::string(bytes, 'x'));
    return message;
  }
  void Send(size_t bytes) {
    const grpc::Slice slice(Message(bytes).SerializeAsString());
    stream_->Send(grpc::ByteBuffer(&slice, 1));
  }

  // A message of 3 MiB is on its way, of which next to nothing can reach the worker.
  void Begin() {
    link_->Let(16 << 10);
    session_ = client_->Session(&context_);
    ASSERT_TRUE(session_->Write(v1::WorkerMessage()));
    stream_ = service_.Await();
    Send(1);
    v1::CoordinatorMessage first;
    ASSERT_TRUE(session_->Read(&first));
    Send(kBytes);
    reader_ = std::thread([this] { session_->Read(&heard_); });
  }
  // What the relay's log says as it looks after so long.
  std::string LookAfter(absl::Duration time) {
    clock_.Advance(time);
    testing::internal::CaptureStderr();
    stream_->Look(clock_.Now());
    return testing::internal::GetCapturedStderr();
  }

  static constexpr int64_t kBytes = 3 << 20, kStep = 512 << 10;  // more than a socket keeps

  const TempDirectory directory_;
  FakeClock clock_;
  OneStream service_{clock_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<SlowLink> link_;
  std::unique_ptr<v1::Coordinator::Stub> client_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>> session_;
  std::shared_ptr<WorkerStream> stream_;
  v1::CoordinatorMessage heard_;
  std::thread reader_;
};

TEST_F(WorkerStreamTest, AWorkerThatTakesALongMessageSlowlyHearsAllOfIt) {
  Begin();
  for (int step = 0; step < 5; ++step) {
    link_->Let(kStep);
    while (!link_->IsUsedUp()) std::this_thread::yield();
    ASSERT_THAT(LookAfter(WorkerPatience().takes), IsEmpty());
  }
  link_->Let(kBytes);
  reader_.join();
  EXPECT_EQ(heard_.abort().reason().size(), size_t{kBytes});
}

TEST_F(WorkerStreamTest, AWorkerThatDoesNotTakeALongMessageIsEnded) {
  Begin();
  EXPECT_THAT(LookAfter(WorkerPatience().ForMessage(kBytes) - absl::Seconds(1)), IsEmpty());
  std::string said;
  while (said.empty()) said = LookAfter(absl::Seconds(2));
  EXPECT_THAT(said, HasSubstr("was ended: it has taken nothing for 3m"));
}

}  // namespace
}  // namespace coordd
