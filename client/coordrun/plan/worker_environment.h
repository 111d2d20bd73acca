// What a worker finds in its environment. Values in, values out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/torch_variables.h"
#include "common/base/environment.h"
#include "common/grpc/tls.h"

namespace coordd {

// How workers reach their coordd.
struct Rendezvous {
  std::string address;  // host:port
  std::string job;
  std::string token_file;      // empty: no token
  TlsFiles tls;                // a worker's; empty: no TLS
  TlsFiles launcher_tls = {};  // coordrun's own, likewise
  TlsFiles node_tls = {};      // of the relays of its nodes; empty: they have a worker's
  // A name of this run, unique, which begins COORDD_LAUNCH_ID of each worker. Empty: coordrun does
  // not see how they end.
  std::string launch_id = "";
};

// The variables of a worker that coordrun decides beside Rendezvous.
struct WorkerPlace {
  int32_t rank = 0, size = 1;
  int32_t local_rank = 0, local_size = 1;
};

// What a worker of this run is called in its `start`-th life, from 0: COORDD_LAUNCH_ID.
std::string LaunchId(const std::string& run, int32_t worker, int32_t start);

// COORDD_RANK and those with it, as hints.
Environment PlaceVariables(const WorkerPlace& place);

// What all workers of a run have in common: how to reach coordd, and what -x says. A variable with
// an empty value is one that they must not have. NOT_FOUND: -x names one that `inherited` lacks.
absl::StatusOr<Environment> CommonVariables(const RunOptions& options, const Rendezvous& rendezvous,
                                            const Environment& inherited);

// NOT_FOUND: -x names a variable that `inherited` lacks.
absl::Status CheckVariables(const RunOptions& options, const Environment& inherited);

// The environment of worker `local_rank` of this run, on this machine: coordrun's own (`inherited`)
// with the variables that coordrun decides (see --help) and those of -x. `master`: of torch's
// variables. NOT_FOUND: as above.
absl::StatusOr<Environment> EnvironmentOfWorker(const RunOptions& options,
                                                const Rendezvous& rendezvous, int32_t local_rank,
                                                const Environment& inherited,
                                                const TorchMaster& master = {});

// What goes with the workers to other hosts: everything but the variables that describe this
// machine and this login.
Environment TransferredEnvironment(const Environment& inherited);

// `more` over `environment`; an empty value removes a variable.
void Overlay(const Environment& more, Environment* environment);

}  // namespace coordd
