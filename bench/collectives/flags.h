// The command line of `coordd-bench collectives`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "bench/collectives/collectives.h"

namespace coordd::bench {

struct CollectivesFlags {
  CollectivesOptions options;
  std::string ops;
  std::string in_place = "both";
  std::string buffers = "private";
  std::string path = "bare";
  std::string device = "host";
  bool csv = false;
};

// `flags` outlives the app.
void AddCollectives(CLI::App& app, CollectivesFlags& flags);

// Measures and prints. What the process exits with.
int RunCollectives(CollectivesFlags& flags, bool json);

}  // namespace coordd::bench
