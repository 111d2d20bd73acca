// coordrun --mpi-rank: stands between mpirun and the program of one rank, gives it torch's
// variables (torch_variables.h), and becomes the program.
//
// The ranks meet in a folder of the run, since coordd's store knows no job before its first member
// has joined: each leaves there what it is, mpirun's rank 0 says who will be which rank of coordd,
// and the one that will be rank 0 picks the port of torch's store, which its program keeps. (io;
// but MpiPlaceOf and PlacesOf are values in, values out)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/coordrun/wire/agent_messages.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/launch/launcher_detect.h"

namespace coordd {

struct MpiRankRequest {
  std::string directory;  // that all ranks of the run see
  absl::Duration within;  // for the others to come
  std::vector<std::string> command;
};

// What mpirun says of this process; size -1: nothing. FAILED_PRECONDITION: no rank.
absl::StatusOr<LaunchPlace> MpiPlaceOf(const Environment& environment, const LaunchFacts& facts);

// For all ranks, of which `seats` are in the order of mpirun's.
v1::MpiPlaces PlacesOf(const std::vector<AgentReport>& seats);

// Returns when it cannot become the command: the exit status, of which stderr has the reason.
int RunMpiRank(const MpiRankRequest& request, Environment environment, Clock& clock);

}  // namespace coordd
