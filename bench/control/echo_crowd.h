// The yardstick's clients: as many streams as a job has sessions. (io)
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/control/crowd.h"
#include "bench/control/server_process.h"

namespace coordd::bench {

// One owner. The server is a process of its own: this program as `echo-server`.
class EchoCrowd {
 public:
  static absl::StatusOr<std::unique_ptr<EchoCrowd>> Start(int32_t sessions, int32_t channels);

  // Opens all streams and has one round with them.
  absl::StatusOr<absl::Duration> Open();
  // Every stream sends 64 bytes; until the last has the answer.
  absl::StatusOr<absl::Duration> Round();

  const ServerProcess& server() const { return *server_; }

 private:
  EchoCrowd(std::unique_ptr<ServerProcess> server, int32_t sessions, int32_t channels);

  const std::unique_ptr<ServerProcess> server_;
  grpc::ByteBuffer message_;
  Arrivals arrivals_;
  Crowd crowd_;
};

}  // namespace coordd::bench
