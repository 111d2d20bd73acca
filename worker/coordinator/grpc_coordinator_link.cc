#include "worker/coordinator/grpc_coordinator_link.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/grpc_status.h"
#include "coordd/v1/session.grpc.pb.h"
#include "worker/coordinator/message_outbox.h"

namespace coordd {
namespace {

// A message as it has come. gRPC tells one that it cannot read from the end of the stream by
// nothing but that the stream goes on.
struct Incoming {
  v1::CoordinatorMessage message;
  bool is_readable = true;
};

}  // namespace
}  // namespace coordd

namespace grpc {

template <>
class SerializationTraits<coordd::Incoming> {
 public:
  static Status Deserialize(ByteBuffer* buffer, coordd::Incoming* incoming) {
    ProtoBufferReader reader(buffer);
    incoming->is_readable =
        reader.status().ok() && incoming->message.ParseFromZeroCopyStream(&reader);
    buffer->Clear();
    return Status::OK;
  }
};

}  // namespace grpc

namespace coordd {
namespace {

// Half the default lease each, so that a dead network ends the stream about when coordd gives the
// worker up.
constexpr int kKeepaliveIntervalMs = 5000;
constexpr int kKeepaliveTimeoutMs = 5000;
// Each probe is a message more to coordd (coord_server.cc has none either).
constexpr int kProbeBandwidth = 0;
// gRPC's own reconnection, for the store's calls: coordd is restarted by hand or by a supervisor.
constexpr int kReconnectInitialMs = 100;
constexpr int kReconnectMaxMs = 2000;
constexpr int kConnectTimeoutMs = 5000;  // of one attempt, TLS handshake included
// A plan names its tensors: 65,536 names (a group at its bound) of 512 bytes are 32 MiB.
constexpr int kMaxReceiveBytes = 64 << 20;
constexpr char kSession[] = "/coordd.v1.Coordinator/Session";

class GrpcCoordinatorLink final : public CoordinatorLink,
                                  private grpc::ClientBidiReactor<v1::WorkerMessage, Incoming> {
 public:
  GrpcCoordinatorLink(std::shared_ptr<grpc::Channel> channel,
                      std::shared_ptr<std::atomic<bool>> spoke)
      : channel_(std::move(channel)), stub_(channel_), spoke_(std::move(spoke)) {}

  ~GrpcCoordinatorLink() override {
    Cancel();
    MutexLock lock(&mu_);
    while (started_ && !done_) done_changed_.Wait(&mu_);
  }

  void Start(Callbacks callbacks) override {
    callbacks_ = std::move(callbacks);
    {
      MutexLock lock(&mu_);
      started_ = true;
    }
    stub_.PrepareBidiStreamingCall(&context_, method_, {}, this);
    COORDD_TSAN_RELEASE(&incoming_);
    StartRead(&incoming_);
    COORDD_TSAN_RELEASE(&callbacks_);
    StartCall();
  }

  absl::Status Send(v1::WorkerMessage message) override {
    MutexLock lock(&mu_);
    if (closing_ || ended_)
      return absl::FailedPreconditionError("the connection to coordd has ended");
    if (full_.ok()) full_ = outbox_.Add(std::move(message));
    WriteNextLocked();
    return full_;
  }

  void Close() override {
    MutexLock lock(&mu_);
    closing_ = true;
    WriteNextLocked();
  }

  void Cancel() override {
    MutexLock lock(&mu_);
    if (started_ && !done_) context_.TryCancel();
  }

 private:
  // At most one write is outstanding; none is started once reading has ended, because gRPC may then
  // be done with the stream at any moment.
  void WriteNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_) return;
    if (!outbox_.empty()) {
      writing_ = true;
      COORDD_TSAN_RELEASE(&outbox_);
      StartWrite(&outbox_.Begin());
    } else if (closing_ && !writes_done_) {
      writes_done_ = true;
      StartWritesDone();
    }
  }

  void OnWriteDone(bool ok) override {
    COORDD_TSAN_ACQUIRE(&outbox_);
    MutexLock lock(&mu_);
    writing_ = false;
    outbox_.PopFront();
    if (ok) WriteNextLocked();  // otherwise the stream has broken: OnDone says why
  }

  void OnReadDone(bool ok) override {
    COORDD_TSAN_ACQUIRE(&incoming_);
    COORDD_TSAN_ACQUIRE(&callbacks_);
    if (!ok) {
      MutexLock lock(&mu_);
      ended_ = true;
      return;
    }
    if (spoke_ != nullptr) *spoke_ = true;
    if (!incoming_.is_readable) return EndUnread();
    callbacks_.on_message(std::move(incoming_.message));
    incoming_.message.Clear();
    COORDD_TSAN_RELEASE(&incoming_);
    StartRead(&incoming_);
  }

  void OnDone(const grpc::Status& status) override {
    COORDD_TSAN_ACQUIRE(&callbacks_);
    callbacks_.on_closed(WhyClosed(status));
    MutexLock lock(&mu_);
    ended_ = true;
    done_ = true;
    // Under the lock: the destructor, which waits for it, must not free the variable in between.
    done_changed_.NotifyAll();
  }

  void EndUnread() {
    MutexLock lock(&mu_);
    ended_ = true;
    broken_ = absl::InternalError(
        "coordd sent what is no message of its protocol: what listens there is no coordd, or one "
        "of another version");
    context_.TryCancel();
  }

  // Who gave the stream up because coordd reads nothing, or sends what cannot be read, wants to
  // hear that again, not that it was cancelled.
  absl::Status WhyClosed(const grpc::Status& status) {
    MutexLock lock(&mu_);
    if (!broken_.ok()) return broken_;
    return !full_.ok() && status.error_code() == grpc::StatusCode::CANCELLED ? full_
                                                                             : FromCoordd(status);
  }

  // Constant after construction.
  const std::shared_ptr<grpc::Channel> channel_;
  const std::string method_ = kSession;
  grpc::TemplatedGenericStub<v1::WorkerMessage, Incoming> stub_;
  const std::shared_ptr<std::atomic<bool>> spoke_;

  // Constant after Start.
  Callbacks callbacks_;

  // Thread-safe by itself (TryCancel), or gRPC's.
  grpc::ClientContext context_;

  // Touched by one gRPC reaction at a time: the next read is started by the end of the last.
  Incoming incoming_;

  // Guarded by mu_. The front of outbox_ is gRPC's to read while writing_.
  Mutex mu_;
  CondVar done_changed_;
  MessageOutbox outbox_ ABSL_GUARDED_BY(mu_);
  absl::Status full_ ABSL_GUARDED_BY(mu_);    // why a message was not taken
  absl::Status broken_ ABSL_GUARDED_BY(mu_);  // of one that cannot be read
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool writes_done_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

std::shared_ptr<grpc::Channel> NewChannel(const std::string& target,
                                          std::shared_ptr<grpc::ChannelCredentials> credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveIntervalMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, kProbeBandwidth);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectInitialMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMaxMs);
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  // A proxy from the environment is for the web, not for a cluster's own network.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // Two workers in one process (tests) are two connections, as two processes would be.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const HostPort& coordinator,
                                                           const TlsFiles& tls) {
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials,
                          ChannelCredentialsFrom(tls));
  return NewChannel(coordinator.ToString(), std::move(credentials));
}

std::shared_ptr<grpc::Channel> OpenRelayChannel(const std::string& relay) {
  return NewChannel(relay, grpc::InsecureChannelCredentials());
}

std::unique_ptr<CoordinatorLink> NewGrpcCoordinatorLink(std::shared_ptr<grpc::Channel> channel,
                                                        std::shared_ptr<std::atomic<bool>> spoke) {
  return std::make_unique<GrpcCoordinatorLink>(std::move(channel), std::move(spoke));
}

}  // namespace coordd
