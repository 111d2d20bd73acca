#include "common/net/listening_sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr int kBacklog = 65535;  // the kernel's bound (net.core.somaxconn) is what counts
// The first is picked by the kernel and may be taken at another address of the same name.
constexpr int kPortAttempts = 16;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<AddressList> Resolve(const std::string& host, uint16_t port, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string service = absl::StrCat(port);
  if (const int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("host ", host, " does not resolve: ", gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

std::string Numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST] = "";
  getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

uint16_t PortOf(int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  // Of both families it stands in the same place.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

absl::Status Failed(absl::string_view what, const HostPort& address, int error) {
  const std::string why = error == EADDRINUSE
                              ? "the port is in use: give another one, or end what `ss -ltnp` names"
                          : error == EADDRNOTAVAIL ? "the address is not this machine's"
                                                   : std::string(std::strerror(error));
  return absl::UnavailableError(
      absl::StrCat("cannot listen for ", what, " on ", address.ToString(), ": ", why));
}

// 0, or errno.
int Listen(const addrinfo& at, bool v4_too, OwnedFd* made) {
  OwnedFd fd(socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  const int one = 1, zero = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  if (at.ai_family == AF_INET6)
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, v4_too ? &zero : &one, sizeof(one));
  // What is accepted inherits it.
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (bind(fd.get(), at.ai_addr, at.ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0)
    return errno;
  *made = std::move(fd);
  return 0;
}

// 0, or errno. Into `sockets`, all at one port.
int ListenAtAll(const AddressList& addresses, std::vector<OwnedFd>* sockets) {
  uint16_t port = 0;
  for (addrinfo* at = addresses.get(); at != nullptr; at = at->ai_next) {
    auto* generic = reinterpret_cast<sockaddr_in*>(at->ai_addr);
    if (port != 0) generic->sin_port = htons(port);
    OwnedFd fd;
    const int error = Listen(*at, false, &fd);
    // "localhost" is often ::1 as well where the kernel has no IPv6.
    const bool absent = error == EAFNOSUPPORT || error == EADDRNOTAVAIL;
    if (absent && (at->ai_next != nullptr || !sockets->empty())) continue;
    if (error != 0) return error;
    if (port == 0) port = PortOf(fd.get());
    sockets->push_back(std::move(fd));
  }
  return 0;
}

}  // namespace

absl::StatusOr<ListeningSockets> ListeningSockets::Open(const HostPort& address,
                                                        absl::string_view what) {
  ListeningSockets made;
  made.address_ = address;
  if (address.host == "0.0.0.0" || address.host == "::") {
    made.loopback_ = false;
    for (const char* any : {"::", "0.0.0.0"}) {
      COORDD_ASSIGN_OR_RETURN(const AddressList at, Resolve(any, address.port, AI_NUMERICHOST));
      OwnedFd fd;
      const int error = Listen(*at, true, &fd);
      if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) continue;
      if (error != 0) return Failed(what, address, error);
      made.sockets_.push_back(std::move(fd));
      break;  // the one of IPv6 takes both
    }
    if (made.sockets_.empty()) return Failed(what, address, EADDRNOTAVAIL);
    made.address_.port = PortOf(made.sockets_.front().get());
    made.own_address_ = {"127.0.0.1", made.address_.port};
    return made;
  }
  int error = 0;
  for (int attempt = 0; attempt < kPortAttempts; ++attempt) {
    COORDD_ASSIGN_OR_RETURN(const AddressList found, Resolve(address.host, address.port, 0));
    made.sockets_.clear();
    made.loopback_ = true;
    for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next)
      made.loopback_ = made.loopback_ && IsLoopback(Numeric(at->ai_addr, at->ai_addrlen));
    error = ListenAtAll(found, &made.sockets_);
    if (error != EADDRINUSE || address.port != 0) break;
  }
  if (error != 0) return Failed(what, address, error);
  made.address_.port = PortOf(made.sockets_.front().get());
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  getsockname(made.sockets_.front().get(), reinterpret_cast<sockaddr*>(&bound), &size);
  made.own_address_ = {Numeric(reinterpret_cast<const sockaddr*>(&bound), size),
                       made.address_.port};
  return made;
}

absl::StatusOr<OwnedFd> ConnectWithin(const HostPort& numeric, absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const AddressList at,
                          Resolve(numeric.host, numeric.port, AI_NUMERICHOST));
  OwnedFd fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = fd.valid() && connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
  if (fd.valid() && error == EINPROGRESS) {
    pollfd writable = {fd.get(), POLLOUT, 0};
    socklen_t size = sizeof(error);
    const int ready = poll(&writable, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
    if (ready != 1) {
      error = ETIMEDOUT;
    } else {
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }
  if (error == 0) return fd;
  return absl::UnavailableError(
      absl::StrCat("no connection to ", numeric.ToString(), ": ", std::strerror(error)));
}

}  // namespace coordd
