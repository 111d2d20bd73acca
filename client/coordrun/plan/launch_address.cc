#include "client/coordrun/plan/launch_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/owned_fd.h"
#include "common/launch/host_list.h"
#include "common/net/address.h"

namespace coordd {
namespace {

// Empty: not one that others can be told.
std::string Numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address == nullptr) return "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return "";
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> OwnAddresses(const std::string& networks) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return absl::UnavailableError(absl::StrCat("getifaddrs: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  const std::set<std::string> wanted = absl::StrSplit(networks, ',', absl::SkipEmpty());
  std::set<std::string> there;
  std::vector<std::string> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    there.insert(entry->ifa_name);
    if ((entry->ifa_flags & IFF_UP) == 0) continue;
    if (!wanted.empty() && wanted.count(entry->ifa_name) == 0) continue;
    if (const std::string text = Numeric(entry->ifa_addr); !text.empty()) addresses.push_back(text);
  }
  for (const std::string& name : wanted) {
    if (there.count(name) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("--network-interfaces: there is no ", name,
                                                   ", expected of ", absl::StrJoin(there, ", ")));
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& address) { return !IsLoopback(address); });
  return addresses;
}

std::vector<std::string> OwnNames() {
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) != 0 || name[0] == '\0') return {};
  std::vector<std::string> names = {name};
  if (const std::string brief = ShortHostName(name); brief != name) names.push_back(brief);
  return names;
}

}  // namespace coordd
