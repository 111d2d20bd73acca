#include "worker/transport/peers/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>

namespace coordd {

SocketAddress SocketAddress::Of(const HostPort& from) {
  SocketAddress to;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&to.storage);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&to.storage);
  if (inet_pton(AF_INET, from.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(from.port);
    to.size = sizeof(*v4);
  } else if (inet_pton(AF_INET6, from.host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(from.port);
    to.size = sizeof(*v6);
  }
  return to;
}

HostPort SocketAddress::ToHostPort() const {
  std::array<char, INET6_ADDRSTRLEN> text = {};
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(storage);
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(storage);
  const bool is_v4 = storage.ss_family == AF_INET;
  const void* const address =
      is_v4 ? static_cast<const void*>(&v4.sin_addr) : static_cast<const void*>(&v6.sin6_addr);
  inet_ntop(storage.ss_family, address, text.data(), text.size());
  return {text.data(), ntohs(is_v4 ? v4.sin_port : v6.sin6_port)};
}

OwnedFd OpenTcpSocket(const SocketAddress& address) {
  constexpr int kType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  return OwnedFd(address.size == 0 ? -1 : socket(address.storage.ss_family, kType, 0));
}

}  // namespace coordd
