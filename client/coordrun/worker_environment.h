// What a worker finds in its environment. Values in, values out.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/coordrun/run_options.h"
#include "common/environment.h"
#include "common/tls.h"

namespace coordd {

// How workers reach their coordd.
struct Rendezvous {
  std::string address;  // host:port
  std::string job;
  std::string token_file;  // empty: no token
  TlsFiles tls;            // a worker's; empty: no TLS
};

// The environment of worker `local_rank` of this run: coordrun's own (`inherited`) with the
// variables that coordrun decides (see --help) and those of -x. NOT_FOUND: -x names one that is not
// set.
absl::StatusOr<Environment> EnvironmentOfWorker(const RunOptions& options,
                                                const Rendezvous& rendezvous, int32_t local_rank,
                                                const Environment& inherited);

}  // namespace coordd
