#include "common/net/peer_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr size_t kBlockBytes = 8;  // a /64

PeerAddress OfV4(const in_addr& address, uint16_t port) {
  char text[INET_ADDRSTRLEN] = "?";
  inet_ntop(AF_INET, &address, text, sizeof(text));
  return {absl::StrCat(text, ":", ntohs(port)), text};
}

}  // namespace

PeerAddress PeerAddressOf(const sockaddr_storage& peer) {
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
    return OfV4(v4.sin_addr, v4.sin_port);
  }
  if (peer.ss_family != AF_INET6) return {"unknown", "unknown"};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(peer);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    in_addr v4 = {};
    std::memcpy(&v4, &v6.sin6_addr.s6_addr[12], sizeof(v4));
    return OfV4(v4, v6.sin6_port);
  }
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  in6_addr network = v6.sin6_addr;
  std::fill(std::begin(network.s6_addr) + kBlockBytes, std::end(network.s6_addr), 0);
  char block[INET6_ADDRSTRLEN] = "?";
  inet_ntop(AF_INET6, &network, block, sizeof(block));
  return {absl::StrCat("[", text, "]:", ntohs(v6.sin6_port)), absl::StrCat(block, "/64")};
}

}  // namespace coordd
