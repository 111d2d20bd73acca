#include "worker/transport/peers/network_interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <memory>

namespace coordd {

absl::StatusOr<NetworkInterface> InterfaceBesideLoopback() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::ErrnoToStatus(errno, "listing network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  constexpr unsigned kUp = IFF_UP | IFF_RUNNING;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & (kUp | IFF_LOOPBACK)) != kUp) continue;
    std::array<char, INET_ADDRSTRLEN> text = {};
    const auto& address = reinterpret_cast<const sockaddr_in&>(*entry->ifa_addr);
    inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
    return NetworkInterface{entry->ifa_name, text.data()};
  }
  return absl::NotFoundError("no network interface but the loopback is up and has an address");
}

}  // namespace coordd
