#include "worker/transport/tcp/tcp_listener.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "worker/transport/peers/peer_probe.h"
#include "worker/transport/peers/socket_address.h"

namespace coordd {
namespace {

constexpr size_t kSecretDigits = 64;

// Where a peer's machine has started anew, it knows nothing of the connection, and nobody sends
// anything: it is asked now and then. A machine that does not answer is WatchedPeer's business,
// which is sooner.
constexpr int kIdleSeconds = 10, kIntervalSeconds = 5, kProbes = 20;

void Set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof(value));  // what does not take it goes on
}

void Prepare(int socket) {
  Set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(socket, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  Set(socket, IPPROTO_TCP, TCP_KEEPINTVL, kIntervalSeconds);
  Set(socket, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

}  // namespace

std::string TcpAddress::ToText() const {
  std::string text = absl::StrCat(kTcpProtocol, " ", at.ToString(), " ", secret, " ",
                                  encrypts ? kEncryptedWord : kPlainWord, " ", connections);
  return probe_port.has_value() ? WithProbePort(text, *probe_port) : text;
}

absl::StatusOr<TcpAddress> TcpAddress::Parse(absl::string_view text) {
  TcpAddress address;
  address.probe_port = ProbePortOf(std::string(text));
  const std::vector<absl::string_view> words = absl::StrSplit(text.substr(0, text.rfind('|')), ' ');
  if (words.size() != 5 || words[0] != kTcpProtocol || words[2].size() != kSecretDigits ||
      (words[3] != kEncryptedWord && words[3] != kPlainWord) ||
      !absl::SimpleAtoi(words[4], &address.connections)) {
    return absl::InvalidArgumentError(
        absl::StrCat("its address is none of ", kTcpProtocol, ": all ranks must have one version"));
  }
  COORDD_ASSIGN_OR_RETURN(address.at, ParseHostPort(words[1]));
  address.secret = std::string(words[2]);
  address.encrypts = words[3] == kEncryptedWord;
  return address;
}

absl::StatusOr<TcpListener> TcpListener::Open(const std::string& address,
                                              const std::optional<PortRange>& ports) {
  const PortRange range = ports.value_or(PortRange{0, 0});
  int error = 0;
  for (int port = range.first; port <= range.last; ++port) {
    SocketAddress local = SocketAddress::Of({address, static_cast<uint16_t>(port)});
    TcpListener opened;
    opened.socket_ = OpenTcpSocket(local);
    // A connection of an earlier job that this side ended waits at the port for a minute.
    Set(opened.socket_.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (opened.socket_.valid() && bind(opened.socket_.get(), local.get(), local.size) == 0 &&
        listen(opened.socket_.get(), SOMAXCONN) == 0 &&
        getsockname(opened.socket_.get(), local.get(), &local.size) == 0) {
      opened.address_ = local.ToHostPort();
      return opened;
    }
    error = errno;
  }
  return absl::UnavailableError(
      absl::StrCat("listening at ", address, " for other ranks",
                   ports.has_value() ? absl::StrCat(", on a port of ", range.ToString()) : "", ": ",
                   strerror(error)));
}

TcpListener::Caller TcpListener::Accept() {
  SocketAddress from;
  from.size = sizeof(from.storage);
  Caller caller;
  caller.socket =
      OwnedFd(accept4(socket_.get(), from.get(), &from.size, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!caller.socket.valid()) return caller;
  Prepare(caller.socket.get());
  caller.address = from.ToHostPort();
  return caller;
}

OwnedFd BeginConnecting(const HostPort& to, int* error) {
  const SocketAddress remote = SocketAddress::Of(to);
  OwnedFd socket = OpenTcpSocket(remote);
  if (socket.valid()) {
    Prepare(socket.get());
    if (connect(socket.get(), remote.get(), remote.size) == 0 || errno == EINPROGRESS)
      return socket;
  }
  *error = remote.size == 0 ? EINVAL : errno;
  return OwnedFd();
}

int ConnectingError(int socket) {
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

}  // namespace coordd
