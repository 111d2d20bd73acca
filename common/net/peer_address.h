// Who is at the other end of a socket: for people, and for what is counted by address. (io)
#pragma once

#include <sys/socket.h>

#include <string>

namespace coordd {

struct PeerAddress {
  std::string text;  // with its port: "10.0.0.7:41234", "[fd00::7]:41234"
  // Whom it is counted with: an address of IPv4, or the /64 of IPv6, all of which one host may
  // have: "10.0.0.7", "fd00::/64".
  std::string block;
};

// IPv4 in IPv6 is IPv4. Of another family, both texts are "unknown".
PeerAddress PeerAddressOf(const sockaddr_storage& peer);

}  // namespace coordd
