// The command line of coordd-worker.
#pragma once

#include <optional>

#include "absl/status/statusor.h"
#include "common/base/environment.h"
#include "worker/api/worker_options.h"
#include "worker/program/allreduce_loop.h"
#include "worker/program/selftest.h"

namespace coordd {

// What the program ends with.
enum WorkerExitCode : int {
  kExitOk = 0,
  kExitCheckFailed = 1,
  kExitUsage = 2,
  kExitCannotJoin = 3,
  kExitGenerationEnded = 4,
};

struct WorkerCommand {
  enum class Kind { kMember, kSelftest, kAllreduce } kind = Kind::kMember;
  WorkerOptions options;
  bool json = false;
  SelftestOptions selftest;
  AllreduceLoopOptions allreduce;
};

// Options of the command line override variables of the environment. An int: the program ends with
// it now, what there was to say (help, a usage error) has been said.
struct ParsedFlags {
  std::optional<int> exit;
  WorkerCommand command;
};
ParsedFlags ParseWorkerFlags(int argc, char** argv, Environment environment);

}  // namespace coordd
