#include "common/net/wire.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr size_t kReadBytes = 16 << 10;

}  // namespace

absl::StatusOr<Wire> Wire::Connect(const HostPort& address, absl::Time deadline, Clock& clock) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
      error != 0) {
    return absl::UnavailableError(
        absl::StrCat("the host name ", address.host, " is not known here: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  int error = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Wire wire(deadline, clock);
    wire.fd_ = OwnedFd(socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (wire.fd_.get() < 0) {
      error = errno;
      continue;
    }
    error = connect(wire.fd_.get(), one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = wire.Await(POLLOUT) ? wire.TakeError() : ETIMEDOUT;
    if (error == 0) return wire;
  }
  return absl::UnavailableError(absl::StrCat("it cannot be reached: ", std::strerror(error)));
}

bool Wire::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if ((errno != EAGAIN && errno != EINTR) || !Await(POLLOUT)) {
      return false;
    }
  }
  return true;
}

std::string Wire::Receive() {
  std::string bytes(kReadBytes, '\0');
  while (Await(POLLIN)) {
    const ssize_t got = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    closed_ = got <= 0;
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  return "";
}

bool Wire::Await(short events) {
  for (;;) {
    const absl::Duration left = deadline_ - clock_->Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd one = {fd_.get(), events, 0};
    const int ready = poll(&one, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

int Wire::TakeError() {
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

}  // namespace coordd
