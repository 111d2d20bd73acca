#include "worker/transport/ucx/peer_probe.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr absl::string_view kMark = "|coordd-probe=";

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;  // 0: no address
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

SocketAddress ToSocketAddress(const HostPort& from) {
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

OwnedFd OpenSocket(const SocketAddress& address) {
  constexpr int kType = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  return OwnedFd(address.size == 0 ? -1 : socket(address.storage.ss_family, kType, 0));
}

// What comes from the other machine, and not from this one or from a router on the way.
PeerProbe::Answer AnswerOf(int error) {
  switch (error) {
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EHOSTDOWN:
    case ENETDOWN:
      return PeerProbe::Answer::kUnreachable;
    default:
      return PeerProbe::Answer::kReached;
  }
}

}  // namespace

absl::StatusOr<ProbePort> ProbePort::Open(const std::string& address, uint16_t port) {
  ProbePort opened;
  SocketAddress local = ToSocketAddress({address, port});
  opened.socket_ = OpenSocket(local);
  if (!opened.socket_.valid()) return absl::ErrnoToStatus(errno, "a socket for probes");
  if (bind(opened.socket_.get(), local.get(), local.size) != 0 ||
      getsockname(opened.socket_.get(), local.get(), &local.size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("a port for probes at ", address, ": error ", errno));
  }
  const bool v4 = local.storage.ss_family == AF_INET;
  const uint16_t bound = v4 ? reinterpret_cast<sockaddr_in&>(local.storage).sin_port
                            : reinterpret_cast<sockaddr_in6&>(local.storage).sin6_port;
  opened.address_ = {address, ntohs(bound)};
  return opened;
}

PeerProbe::PeerProbe(const HostPort& port) {
  SocketAddress remote = ToSocketAddress(port);
  socket_ = OpenSocket(remote);
  if (!socket_.valid()) {
    answer_ = Answer::kReached;
  } else if (connect(socket_.get(), remote.get(), remote.size) == 0) {
    answer_ = Answer::kReached;
  } else if (errno != EINPROGRESS) {
    answer_ = AnswerOf(errno);
  }
}

PeerProbe::Answer PeerProbe::Poll() {
  if (answer_.has_value()) return *answer_;
  pollfd entry = {socket_.get(), POLLOUT, 0};
  if (poll(&entry, 1, 0) <= 0) return Answer::kNone;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  answer_ = AnswerOf(error);
  return *answer_;
}

std::string WithProbePort(std::string address, const HostPort& port) {
  return absl::StrCat(address, kMark, port.ToString());
}

std::optional<HostPort> ProbePortOf(const std::string& address) {
  const size_t mark = address.rfind(std::string(kMark));
  if (mark == std::string::npos) return std::nullopt;
  absl::StatusOr<HostPort> port = ParseHostPort(address.substr(mark + kMark.size()));
  if (!port.ok()) return std::nullopt;
  return *std::move(port);
}

}  // namespace coordd
