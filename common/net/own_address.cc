#include "common/net/own_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace coordd {
namespace {

bool IsWildcard(const std::string& host) {
  return host.empty() || host == "0.0.0.0" || host == "::" || host == "*";
}

}  // namespace

std::string LoopbackAddress() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool works =
      fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  // Without descriptors, say, nothing is known of it.
  const bool missing = !works && (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT);
  if (fd >= 0) close(fd);
  return missing ? "::1" : "127.0.0.1";
}

std::string ReachableHere(const std::string& host) {
  if (host == "0.0.0.0") return "127.0.0.1";
  return host == "::" ? "::1" : host;
}

HostPort MetricsAddress(const HostPort& wanted, const HostPort& coordinator) {
  if (!wanted.host.empty()) return wanted;
  const absl::StatusOr<std::string> local = LocalAddressTowards(coordinator);
  if (local.ok()) return {*local, wanted.port};
  COORDD_LOG(kWarning, "metrics are served on loopback only: ", local.status().message());
  return {LoopbackAddress(), wanted.port};
}

HostPort AnnouncedAddress(const HostPort& bound, const HostPort& coordinator) {
  if (!IsWildcard(bound.host)) return bound;
  absl::StatusOr<std::string> local = LocalAddressTowards(coordinator);
  if (local.ok()) return {*std::move(local), bound.port};
  COORDD_LOG(kWarning, "metrics are announced as ", bound.ToString(),
             ", where others may not find them: ", local.status().message());
  return bound;
}

absl::Status TryToListen(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (int error =
          getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(
        absl::StrCat("host ", address.host, " does not resolve: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  int why = 0;
  for (const addrinfo* candidate = found; candidate != nullptr; candidate = candidate->ai_next) {
    const int fd = socket(candidate->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    const bool ok = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
                    bind(fd, candidate->ai_addr, candidate->ai_addrlen) == 0 && listen(fd, 1) == 0;
    why = errno;
    if (fd >= 0) close(fd);
    if (ok) return absl::OkStatus();
  }
  if (why == EADDRINUSE) return absl::UnavailableError("the port is in use");
  if (why == EADDRNOTAVAIL) return absl::UnavailableError("the address is not this machine's");
  return absl::UnavailableError(std::strerror(why));
}

}  // namespace coordd
