// Addresses of this machine for those who listen on it and those who reach them there.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/net/address.h"

namespace coordd {

// Loopback's address: 127.0.0.1, or ::1 where this machine has no address of IPv4, not even that
// one.
std::string LoopbackAddress();

// 0.0.0.0 and ::, which are for those who listen: where they are reached on this machine. Any other
// host stays as it is.
std::string ReachableHere(const std::string& host);

// Where to serve /metrics when `wanted` names no host: the address that packets to coordd leave
// from, which is loopback when coordd is. `wanted` itself otherwise.
HostPort MetricsAddress(const HostPort& wanted, const HostPort& coordinator);

// Where others find what listens on `bound`: the address that packets to coordd leave from when
// `bound` is every interface, otherwise `bound` itself.
HostPort AnnouncedAddress(const HostPort& bound, const HostPort& coordinator);

// Binds a socket to it and closes that. UNAVAILABLE: what keeps this process from listening there.
absl::Status TryToListen(const HostPort& address);

}  // namespace coordd
