// A transport between nodes over UCX: TCP, InfiniBand, RoCE, whatever UCX finds. (io)
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/net/address.h"
#include "worker/interfaces/transport.h"

namespace coordd {

struct UcxFunctions;

struct UcxTransportOptions {
  // An IP address of this machine: UCX is told to use the interface that has it (the one that
  // routes to the coordinator) and no other. Empty: UCX chooses. The user's UCX_NET_DEVICES goes
  // first.
  std::string local_address;
  // The environment of this process. A UCX_* variable in it is the user's wish and is left alone;
  // COORDD_UCX_LIBRARY names the library.
  Environment environment;
  std::optional<PortRange> ports;  // that UCX listens on over TCP; absent: any
  // Without UCX's TCP, of which no port listens then, and on whatever interface has RDMA.
  bool only_rdma = false;
};

// UCX's active messages (ucp_am_*_nbx), matched by tag = sender's rank (24 bits) | Tag::Encode (40
// bits) (message_inbox.h), in UCP_ERR_HANDLING_MODE_PEER: a peer's end is seen by its connection's
// end or by UCX's keepalive. What is received in place is read in UCX's buffer; a message that
// nobody has asked for yet is copied aside, but stays with its sender if UCX has made a rendezvous
// of it.
// UCX's own shared memory is left out, unless UCX_TLS says otherwise: up to 1.13 it cannot tell
// that a peer has gone.
//
// Endpoints are made with the first message to or from a rank, from the address that Connect put
// into the store under "ucx/RANK"; that one call may wait for the store (kAddressTimeout). So the
// store outlives the transport. Not thread-safe (UCS_THREAD_MODE_SINGLE) except for Abort.
//
// Under the thread sanitizer run with UCX_MEM_EVENTS=n: UCX's memory hooks crash with it.
//
// `clock` outlives it. Connect: UNAVAILABLE what UCX could not open; INVALID_ARGUMENT no interface
// has the local address.
std::unique_ptr<Transport> MakeUcxTransport(const UcxFunctions& ucx, UcxTransportOptions options,
                                            Clock& clock = Clock::Real());

}  // namespace coordd
