// Numeric addresses as the system wants them. (io)
#pragma once

#include <sys/socket.h>

#include <string>

#include "common/base/owned_fd.h"
#include "common/net/address.h"

namespace coordd {

struct SocketAddress {
  // Of a numeric address; of anything else it has no size.
  static SocketAddress Of(const HostPort& from);

  sockaddr_storage storage = {};
  socklen_t size = 0;  // 0: no address

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  HostPort ToHostPort() const;
};

// A TCP socket that does not block; none: `address` is none, or the system has no more.
OwnedFd OpenTcpSocket(const SocketAddress& address);

}  // namespace coordd
