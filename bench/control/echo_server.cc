#include "bench/control/echo_server.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/tsan_annotations.h"

namespace coordd::bench {
namespace {

constexpr size_t kAnswerBytes = 64;
constexpr int kMinPingIntervalMs = 4000;

class EchoService;

class EchoStream final : public grpc::ServerGenericBidiReactor {
 public:
  explicit EchoStream(EchoService& service) : service_(service) {
    COORDD_TSAN_RELEASE(&incoming_);
    StartRead(&incoming_);
  }

  void Answer() {
    MutexLock lock(&mu_);
    if (finished_) return;
    if (writing_) {
      ++owed_;
    } else {
      WriteLocked();
    }
  }

 private:
  void OnReadDone(bool ok) override;
  void OnDone() override;
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok || owed_ == 0 || finished_) return;
    --owed_;
    WriteLocked();
  }
  void WriteLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  EchoService& service_;
  grpc::ByteBuffer incoming_;
  Mutex mu_;
  int owed_ ABSL_GUARDED_BY(mu_) = 0;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

// Thread-safe.
class EchoService final : public grpc::CallbackGenericService {
 public:
  explicit EchoService(int sessions) : sessions_(sessions) {
    const grpc::Slice bytes(std::string(kAnswerBytes, 'x'));
    answer_ = grpc::ByteBuffer(&bytes, 1);
  }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    auto* stream = new EchoStream(*this);
    MutexLock lock(&mu_);
    streams_.push_back(stream);
    return stream;
  }

  void Arrive() {
    MutexLock lock(&mu_);
    if (++arrived_ < sessions_) return;
    arrived_ = 0;
    for (EchoStream* stream : streams_) stream->Answer();
  }

  void Forget(EchoStream* stream) {
    MutexLock lock(&mu_);
    std::erase(streams_, stream);
  }

  const grpc::ByteBuffer& answer() const { return answer_; }

 private:
  const int sessions_;
  grpc::ByteBuffer answer_;
  Mutex mu_;
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<EchoStream*> streams_ ABSL_GUARDED_BY(mu_);
};

void EchoStream::OnReadDone(bool ok) {
  COORDD_TSAN_ACQUIRE(&incoming_);
  if (!ok) {
    {
      MutexLock lock(&mu_);
      finished_ = true;
    }
    Finish(grpc::Status::OK);
    return;
  }
  incoming_.Clear();
  COORDD_TSAN_RELEASE(&incoming_);
  StartRead(&incoming_);
  service_.Arrive();
}

void EchoStream::WriteLocked() {
  writing_ = true;
  StartWrite(&service_.answer());
}

void EchoStream::OnDone() {
  service_.Forget(this);
  delete this;
}

}  // namespace

int RunEchoServer(int sessions, int ready_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  EchoService service(sessions);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, sessions);
  // As server/service/coord_server.cc, so that what is compared is what coordd does.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return 1;
  const std::string ready = absl::StrCat("{\"listen\": \"127.0.0.1:", port, "\"}\n");
  if (write(ready_fd, ready.data(), ready.size()) < 0) return 1;
  close(ready_fd);
  server->Wait();
  return 0;
}

}  // namespace coordd::bench
