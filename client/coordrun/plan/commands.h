// The command lines with which coordrun starts others, and what their failures mean. Secrets are in
// none of them. PURE
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_plan.h"
#include "client/coordrun/plan/run_state.h"
#include "common/base/environment.h"

namespace coordd {

// `self`: the path of this coordrun.
std::vector<std::string> AgentCommand(const std::string& self);
// By ssh, or by LSF's blaunch.
std::vector<std::string> CommandToHost(const RunOptions& options, const HostRanks& host,
                                       const std::string& self);
// One agent for each task; orders go to all of them through srun's stdin.
std::vector<std::string> SrunCommand(const RunOptions& options, const RunPlan& plan,
                                     const std::string& self);

enum class MpiLibrary { kOpenMpi, kHydra };  // MPICH's, Intel's, MVAPICH's mpiexec
// From what `mpirun --version` prints.
MpiLibrary MpiLibraryFrom(const std::string& version_text);
// What mpirun is to start as each rank: the command, which coordrun gives torch's variables on the
// way (mpi_rank.h), in `folder`; with an empty one, the command alone.
std::vector<std::string> MpiRankCommand(const RunOptions& options, const RunPlan& plan,
                                        const std::string& self, const std::string& folder);
// `variables`: names of those that go to the workers; their values are in mpirun's environment.
// `rank_command`: MpiRankCommand.
std::vector<std::string> MpirunCommand(const RunOptions& options, const RunPlan& plan,
                                       MpiLibrary library,
                                       const std::vector<std::string>& variables,
                                       const std::vector<std::string>& rank_command);

// One sentence that names the host and what to do, from what ssh, or blaunch, wrote before it
// ended.
std::string ExplainToHost(const RunOptions& options, const std::string& host, const ProcessEnd& end,
                          const std::vector<std::string>& said);
// `leftover`: LeftoverText, for a job that Slurm does not know.
std::string ExplainSrun(const ProcessEnd& end, const std::vector<std::string>& said,
                        const std::string& leftover = "");

// A word quoted as a shell takes it.
std::string Quoted(const std::string& word);
std::string Quoted(const std::vector<std::string>& command);

}  // namespace coordd
