// What of the jobs outlives coordd.
#pragma once

#include <string>

namespace coordd {

struct Durability {
  bool on = false;  // a generation is announced once it is stored
  std::string cluster_id = {};
  bool outlives = false;  // so that another coordd finds it: members may resume their sessions
};

}  // namespace coordd
