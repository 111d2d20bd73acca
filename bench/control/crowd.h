// Many streams to one server, in one process: what thousands of workers look like from there. (io)
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/net/address.h"

namespace coordd::bench {

// Thread-safe, but for its construction and destruction. gRPC's few threads carry all streams. The
// same for what is measured and for its yardstick, so that a difference is the servers'.
class Crowd {
 public:
  struct Options {
    HostPort server;
    std::string method;    // "/package.Service/Method"
    int32_t sessions = 1;  // streams
    int32_t channels = 1;  // connections; neighbours share one
    std::string tls = {};  // a folder of `coordctl certs`; empty: no TLS
  };
  // On gRPC's threads, for one session one at a time; must not block. `message` is the callee's.
  using OnMessage = std::function<void(int32_t session, grpc::ByteBuffer& message)>;
  // When a session has ended before the Crowd does: an OK status too is not what was expected.
  using OnEnd = std::function<void(int32_t session, const absl::Status& status)>;

  Crowd(const Options& options, OnMessage on_message, OnEnd on_end);
  ~Crowd();  // cancels what is left and waits for its end
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // Opens a session. Its first message may be sent at once.
  void Open(int32_t session);
  // Queued while another message of the session is being written.
  void Send(int32_t session, const grpc::ByteBuffer& message);

  int32_t sessions() const { return static_cast<int32_t>(streams_.size()); }

 private:
  class Stream;

  void OnDone(int32_t session, const absl::Status& status);

  // Constant after construction.
  const std::string method_;
  const OnMessage on_message_;
  const OnEnd on_end_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  std::vector<std::unique_ptr<Stream>> streams_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar changed_;
  int32_t open_ ABSL_GUARDED_BY(mu_) = 0;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
};

// Whoever waits for all of a crowd. Thread-safe.
class Arrivals {
 public:
  // Starts a new count up to `wanted`.
  void Reset(int64_t wanted);
  // So many more have come; the last one notes the moment.
  void Arrive(int64_t count = 1);
  // What was waited for will not come. The first call counts, for ever.
  void Fail(const absl::Status& why);
  // Until all have come: the moment of the last, on Clock::Real(). DEADLINE_EXCEEDED: how many
  // have; or why it failed.
  absl::StatusOr<absl::Time> Await(absl::Duration timeout);

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t wanted_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t missing_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time last_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd::bench
