// Sockets that listen at one address, in all the ways in which it is written. (io)
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/owned_fd.h"
#include "common/net/address.h"

namespace coordd {

class ListeningSockets {
 public:
  // A name listens at each of its addresses, 0.0.0.0 and [::] at all of this machine, of IPv4 and,
  // where the kernel has it, IPv6. Port 0: one that is free at all of them. `what` names them in
  // errors, e.g. "gRPC". UNAVAILABLE: the name does not resolve, the port is in use, or the address
  // is not this machine's. A second process never shares the port.
  static absl::StatusOr<ListeningSockets> Open(const HostPort& address, absl::string_view what);

  ListeningSockets() = default;
  ListeningSockets(ListeningSockets&&) = default;
  ListeningSockets& operator=(ListeningSockets&&) = default;

  const std::vector<OwnedFd>& sockets() const { return sockets_; }  // not blocking
  // The address as it was asked for, with the port that was picked.
  const HostPort& address() const { return address_; }
  // The numeric address of the first socket, for connections to ourselves. Where it listens at all
  // addresses, it is one of this machine.
  const HostPort& own_address() const { return own_address_; }
  // Whether nobody on another machine reaches any of the sockets.
  bool loopback() const { return loopback_; }

 private:
  std::vector<OwnedFd> sockets_;
  HostPort address_;
  HostPort own_address_;
  bool loopback_ = true;
};

// Connects without waiting for more than `timeout`. UNAVAILABLE: why not.
absl::StatusOr<OwnedFd> ConnectWithin(const HostPort& numeric, absl::Duration timeout);

}  // namespace coordd
