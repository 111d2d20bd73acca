#include "worker/transport/peers/peer_probe.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/transport/peers/socket_address.h"

namespace coordd {
namespace {

constexpr absl::string_view kMark = "|coordd-probe=";

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
  SocketAddress local = SocketAddress::Of({address, port});
  opened.socket_ = OpenTcpSocket(local);
  if (!opened.socket_.valid()) return absl::ErrnoToStatus(errno, "a socket for probes");
  if (bind(opened.socket_.get(), local.get(), local.size) != 0 ||
      getsockname(opened.socket_.get(), local.get(), &local.size) != 0) {
    return absl::UnavailableError(
        absl::StrCat("a port for probes at ", address, ": error ", errno));
  }
  opened.address_ = {address, local.ToHostPort().port};
  return opened;
}

std::optional<ProbePort> ProbePort::OpenFor(const std::string& address,
                                            const std::optional<PortRange>& ports, int32_t index,
                                            int32_t ranks) {
  int32_t port = 0;
  if (ports.has_value()) {
    if (ports->size() < 3 + 3 * ranks) return std::nullopt;
    port = ports->last - index;
  }
  absl::StatusOr<ProbePort> opened = Open(address, static_cast<uint16_t>(port));
  if (!opened.ok()) return std::nullopt;
  return *std::move(opened);
}

PeerProbe::PeerProbe(const HostPort& port) {
  SocketAddress remote = SocketAddress::Of(port);
  socket_ = OpenTcpSocket(remote);
  if (!socket_.valid() || connect(socket_.get(), remote.get(), remote.size) == 0) {
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

std::string WithProbePort(absl::string_view address, const HostPort& port) {
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
