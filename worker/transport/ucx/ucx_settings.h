// What coordd sets of UCX, by the version that is loaded. PURE.
#pragma once

#include <string>
#include <vector>

#include "common/machine/ucx_library.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace coordd {

struct UcxSetting {
  std::string name;  // without UCX_
  std::string value;
  // What is lost by a UCX that does not take it, one phrase; empty: nothing but speed, or time
  // until something is noticed, so it is left out.
  std::string needed_to;
};

// Whether what UCX sends goes over TCP for certain: a user who has chosen the network, or what goes
// over it, may have chosen another kind of it.
bool KnowsTcp(const UcxTransportOptions& options);

// The settings in the order in which they are set, without those that the user has set by a
// variable. `interface` is the one that UCX is to use; empty: it chooses.
std::vector<UcxSetting> UcxSettings(const UcxVersion& version, const UcxTransportOptions& options,
                                    const std::string& interface);

// UCX 1.20 takes the first bytes of the number by which it knows a machine, which is what an
// address of a loopback interface has in it, for an IP address, and finds no route to that. 1.21
// does not (openucx/ucx pull request 11202).
bool ReachesNobodyOverLoopback(const UcxVersion& version);

}  // namespace coordd
