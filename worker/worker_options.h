// Everything that can be set about a worker, with its default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/address.h"
#include "common/environment.h"
#include "common/tls.h"

namespace coordd {

enum class TransportChoice {
  kAuto,
  kShm,
  kUcx
};  // kAuto: shared memory inside a node, UCX between nodes

struct WorkerOptions {
  HostPort coordinator;         // COORDD_ADDR
  std::string job = "default";  // COORDD_JOB_ID
  std::string token;            // contents of COORDD_TOKEN_FILE; empty: none
  TlsFiles tls;                 // COORDD_TLS_CERT, COORDD_TLS_KEY, COORDD_TLS_CA
  std::string worker_id;        // empty: hostname-pid-random
  int32_t min_workers = 0;  // COORDD_MIN_WORKERS; 0: COORDD_SIZE when given, else coordd's default
  int32_t max_workers = 0;  // COORDD_MAX_WORKERS; the same
  std::optional<absl::Duration> settling_window;
  int32_t launcher_rank = -1;         // COORDD_RANK
  int32_t launcher_local_rank = -1;   // COORDD_LOCAL_RANK
  std::string node_id;                // COORDD_NODE_ID: replaces what is found out
  std::vector<std::string> topology;  // COORDD_TOPOLOGY: "aisle3/rack12"
  std::optional<HostPort>
      metrics;  // COORDD_METRICS: where to serve /metrics; port 0 picks one; absent: off
  TransportChoice transport = TransportChoice::kAuto;  // COORDD_TRANSPORT: auto, shm, ucx
  Environment ucx_environment;  // UCX_* variables: the user's wishes, which go first

  absl::Duration join_timeout =
      absl::Minutes(5);  // COORDD_JOIN_TIMEOUT seconds: from Start to the first membership
  absl::Duration connect_timeout = absl::Seconds(60);  // data plane of a generation
  absl::Duration collective_timeout =
      absl::Minutes(10);  // COORDD_TIMEOUT seconds: every submitted tensor ends by then
  int64_t fusion_buffer_bytes = int64_t{128} << 20;

  // INVALID_ARGUMENT: names the option, what was given and what is expected.
  absl::Status Validate() const;
};

// From COORDD_* variables. INVALID_ARGUMENT: names the variable, what it holds and what is
// expected.
absl::StatusOr<WorkerOptions> WorkerOptionsFrom(const Environment& environment);

}  // namespace coordd
