// The ways to start workers.
#pragma once

#include <optional>
#include <string>

namespace coordd {

enum class LauncherKind {
  kLocal,     // children of coordrun
  kSsh,       // through ssh, an agent on each host
  kSrun,      // a Slurm step, an agent for each task
  kMpirun,    // an MPI library's mpirun; the workers find their ranks in its variables
  kExternal,  // not at all: coordrun prints what to start, and waits
};

// "ssh"; the names of --launcher.
std::string ToString(LauncherKind kind);
std::optional<LauncherKind> LauncherFrom(const std::string& name);

}  // namespace coordd
