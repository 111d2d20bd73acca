// An interface of this machine that others reach. (io)
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace coordd {

struct NetworkInterface {
  std::string name;     // "eth0"
  std::string address;  // "10.0.0.5"
};

// The first one that is up, has an IPv4 address and is not the loopback: the same for all processes
// of a network namespace. NOT_FOUND.
absl::StatusOr<NetworkInterface> InterfaceBesideLoopback();

}  // namespace coordd
