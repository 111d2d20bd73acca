// Where a rank listens for others, and what it tells them of that. (io)
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/owned_fd.h"
#include "common/net/address.h"
#include "worker/transport/tcp/tls_keys.h"

namespace coordd {

// What a rank puts into the generation's store. Whoever may read it there is believed by the rank.
struct TcpAddress {
  HostPort at;  // a numeric address
  LinkSecret secret;
  bool encrypts = false;
  std::optional<HostPort> probe_port;
  int32_t connections = 1;  // that it has with each other rank

  std::string ToText() const;
  // INVALID_ARGUMENT.
  static absl::StatusOr<TcpAddress> Parse(absl::string_view text);
};

class TcpListener {
 public:
  struct Caller {
    OwnedFd socket;  // none: nobody is there
    HostPort address;
  };

  // Listens at this IP address, on a port of the range if there is one. UNAVAILABLE.
  static absl::StatusOr<TcpListener> Open(const std::string& address,
                                          const std::optional<PortRange>& ports);
  int socket() const { return socket_.get(); }
  const HostPort& address() const { return address_; }
  // The next one that has connected; does not block.
  Caller Accept();

 private:
  OwnedFd socket_;
  HostPort address_;
};

// A connection that is begun; none: why is in `error`, a number of the system's.
OwnedFd BeginConnecting(const HostPort& to, int* error);
// How it has ended: 0, or the system's error. REQUIRES: the socket can be written to.
int ConnectingError(int socket);

}  // namespace coordd
