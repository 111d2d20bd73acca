#include "client/coordrun/process/master_port.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/net/address.h"

namespace coordd {
namespace {

// On all addresses of both families, as TCPStore listens; of IPv4 alone where there is no IPv6.
OwnedFd OpenSocket(int family) {
  OwnedFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int off = 0;
  if (fd.valid() && family == AF_INET6)
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  return fd;
}

// 0 or the error's number. `port` 0: any, and becomes the one that was taken.
int BindTo(const OwnedFd& fd, int family, uint16_t* port) {
  sockaddr_in6 six{};
  sockaddr_in four{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(*port);
  four.sin_family = AF_INET;
  four.sin_port = htons(*port);
  const bool is_six = family == AF_INET6;
  auto* address = is_six ? reinterpret_cast<sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
  socklen_t size = is_six ? sizeof(six) : sizeof(four);
  if (bind(fd.get(), address, size) != 0) return errno;
  if (getsockname(fd.get(), address, &size) != 0) return errno;
  *port = ntohs(is_six ? six.sin6_port : four.sin_port);
  return 0;
}

}  // namespace

void MasterPort::KeepOverExec() const { fcntl(socket_.get(), F_SETFD, 0); }

absl::StatusOr<MasterPort> MasterPort::Reserve(const std::string& port_range) {
  PortRange range;  // 0 to 0: any
  if (!port_range.empty()) {
    COORDD_ASSIGN_OR_RETURN(range, ParsePortRange(port_range));
  }
  int error = 0;
  for (const int family : {AF_INET6, AF_INET}) {
    for (int32_t next = range.last; next >= range.first; --next) {
      OwnedFd fd = OpenSocket(family);
      if (!fd.valid()) {
        error = errno;
        break;
      }
      auto port = static_cast<uint16_t>(next);
      error = BindTo(fd, family, &port);
      if (error != 0) continue;
      // Only now: whoever holds the port in the same way would else have shared it with us.
      const int on = 1;
      setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
      return MasterPort(std::move(fd), port);
    }
    if (error == EADDRINUSE) break;  // no other family would help
  }
  return absl::UnavailableError(
      absl::StrCat("no port for torch's rank 0 (MASTER_PORT): ",
                   port_range.empty() ? "" : absl::StrCat("none of ", port_range, " is free, "),
                   std::strerror(error)));
}

}  // namespace coordd
