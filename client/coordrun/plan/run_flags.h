// coordrun's command line.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/coordrun/plan/run_options.h"

namespace coordd {

struct RunFlags {
  RunOptions options;
  bool agent = false;       // coordrun --agent: see agent.h
  std::string mpi_rank;     // coordrun --mpi-rank DIR: see mpi_rank.h
  std::optional<int> exit;  // help, version or wrong usage: nothing to run; text was printed
};

inline constexpr int kExitUsage = 2;

// Options end at "--" or at the first word that is none: the command follows. `arguments` without
// the program's name.
RunFlags ParseRunFlags(const std::vector<std::string>& arguments);

}  // namespace coordd
