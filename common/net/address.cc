#include "common/net/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

// The longest host name that DNS allows.
constexpr size_t kMaxHostBytes = 253;

absl::Status BadAddress(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("address \"", text.substr(0, 300), "\" ", why,
                                                 "; expected HOST:PORT or [IPV6]:PORT"));
}

// The address as text without a scope, e.g. "10.0.0.7". Empty: not an internet address.
std::string NumericHost(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text,
              sizeof(text));
  } else if (address->sa_family == AF_INET6) {
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text,
              sizeof(text));
  }
  return text;
}

}  // namespace

std::string HostPort::ToString() const {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  absl::string_view host, port;
  if (absl::StrContains(text, "://")) return BadAddress(text, "is a URL");
  if (!text.empty() && text.front() == '[') {
    const size_t close = text.find(']');
    if (close == absl::string_view::npos) return BadAddress(text, "has no ]");
    host = text.substr(1, close - 1);
    if (text.size() <= close + 1 || text[close + 1] != ':') return BadAddress(text, "has no port");
    port = text.substr(close + 2);
    in6_addr parsed;
    if (inet_pton(AF_INET6, std::string(host).c_str(), &parsed) != 1)
      return BadAddress(text, "has no IPv6 address between its brackets");
  } else {
    const size_t colon = text.find(':');
    if (colon == absl::string_view::npos) return BadAddress(text, "has no port");
    if (text.find(':', colon + 1) != absl::string_view::npos)
      return BadAddress(text, "has more than one colon");
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (host.empty()) return BadAddress(text, "has no host");
  if (host.size() > kMaxHostBytes) return BadAddress(text, "has a host of over 253 bytes");
  for (char c : host) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains(".-_:", c))
      return BadAddress(text, "has a character in its host that no host name has");
  }
  uint32_t number = 0;
  if (port.empty() || !absl::ascii_isdigit(port.front()) || !absl::SimpleAtoi(port, &number) ||
      number > 65535) {
    return BadAddress(text, "has a port that is not a number from 0 to 65535");
  }
  return HostPort{std::string(host), static_cast<uint16_t>(number)};
}

absl::StatusOr<PortRange> ParsePortRange(absl::string_view text) {
  const size_t dash = text.find('-');
  const absl::string_view low = text.substr(0, dash);
  const absl::string_view high = dash == absl::string_view::npos ? low : text.substr(dash + 1);
  uint32_t first = 0, last = 0;
  const auto is_digit = [](char c) { return absl::ascii_isdigit(c); };
  const bool digits = !low.empty() && !high.empty() &&
                      std::all_of(low.begin(), low.end(), is_digit) &&
                      std::all_of(high.begin(), high.end(), is_digit);
  if (!digits || !absl::SimpleAtoi(low, &first) || !absl::SimpleAtoi(high, &last) || first < 1 ||
      last > 65535 || first > last) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\" is no range of ports, expected A-B with 1 <= A <= B <= 65535"));
  }
  return PortRange{static_cast<uint16_t>(first), static_cast<uint16_t>(last)};
}

bool IsLoopback(absl::string_view host) {
  if (absl::EqualsIgnoreCase(host, "localhost")) return true;
  const std::string text(host);
  in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

absl::StatusOr<std::string> LocalAddressTowards(const HostPort& remote) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // connect() on a datagram socket only looks up the route; any port but 0 will do.
  const int port = remote.port == 0 ? 9 : remote.port;
  if (int error = getaddrinfo(remote.host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(
        absl::StrCat("host ", remote.host, " does not resolve: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  int last_error = 0;
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    const int fd = socket(candidate->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      last_error = errno;
      continue;
    }
    sockaddr_storage local = {};
    socklen_t size = sizeof(local);
    const bool ok = connect(fd, candidate->ai_addr, candidate->ai_addrlen) == 0 &&
                    getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0;
    last_error = errno;
    close(fd);
    if (!ok) continue;
    std::string host = NumericHost(reinterpret_cast<const sockaddr*>(&local));
    if (!host.empty()) return host;
  }
  return absl::UnavailableError(
      absl::StrCat("no route to ", remote.ToString(), ": ", std::strerror(last_error)));
}

absl::StatusOr<std::string> InterfaceOf(absl::string_view address) {
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) {
    return absl::UnavailableError(
        absl::StrCat("the network interfaces cannot be listed: ", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(interfaces, &freeifaddrs);
  for (const ifaddrs* entry = interfaces; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr != nullptr && NumericHost(entry->ifa_addr) == address)
      return std::string(entry->ifa_name);
  }
  return absl::NotFoundError(absl::StrCat("no network interface has the address ", address));
}

}  // namespace coordd
