// The crew of a plan. (io)
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/coordrun/coordinator/run_coordinator.h"
#include "client/coordrun/crews/crew.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "common/base/environment.h"

namespace coordd {

struct CrewInputs {
  const RunOptions& options;
  const RunPlan& plan;
  const RunCoordinator& coordinator;
  const Environment& environment;  // coordrun's own
  std::string self;                // the path of this coordrun
  std::string directory;           // the working directory here
  std::string marker;              // see AgentOrders::marker
  std::string run_directory = "";  // of this run, on this machine
  // With --host-discovery-script: where a worker is to be started that was in no plan.
  std::function<HostRanks(int32_t worker)> place_of = {};
};

// NOT_FOUND: -x names a variable that is not set. UNAVAILABLE: a secret's file cannot be read.
absl::StatusOr<std::unique_ptr<Crew>> MakeCrew(const CrewInputs& inputs);

}  // namespace coordd
