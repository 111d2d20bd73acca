// What of the jobs outlives coordd.
#pragma once

#include <string>

namespace coordd {

struct Durability {
  bool on = false;  // a generation is announced once it is stored
  std::string cluster_id = {};
};

}  // namespace coordd
