#include "server/door/socket_progress.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstddef>

#include "common/base/owned_fd.h"

namespace coordd {
namespace {

// The kernel counts in its own ticks, of up to 10 ms.
constexpr uint32_t kAwaitedMs = 20;
// Zeros behind what an older kernel knows; nothing at all where it is no connection.
bool ReadInfo(int fd, tcp_info& info, socklen_t& size) {
  info = {};
  size = sizeof(info);
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
}

}  // namespace

uint64_t SocketCookie(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  return getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

uint64_t BytesReceived(int fd) {
  tcp_info info;
  socklen_t size = 0;
  if (!ReadInfo(fd, info, size)) return UINT64_MAX;
  constexpr size_t kEnd =
      offsetof(tcp_info, tcpi_bytes_received) + sizeof(info.tcpi_bytes_received);
  return size < kEnd ? UINT64_MAX : info.tcpi_bytes_received;
}

uint64_t BytesTaken(int fd) {
  int unread = 0;
  // In this order: what arrives in between is not counted.
  const uint64_t received = BytesReceived(fd);
  if (received == UINT64_MAX || ioctl(fd, SIOCINQ, &unread) != 0 || unread < 0) return 0;
  const auto waiting = static_cast<uint64_t>(unread);
  return received > waiting ? received - waiting : 0;
}

bool ClientIsAwaited(int fd, uint64_t asked) {
  tcp_info info;
  socklen_t size = 0;
  int unread = 0;
  if (!ReadInfo(fd, info, size) || ioctl(fd, SIOCINQ, &unread) != 0) return false;
  if (unread > 0 || info.tcpi_bytes_acked + info.tcpi_unacked == 0) return false;
  const uint32_t sent_ms = info.tcpi_last_data_sent, received_ms = info.tcpi_last_data_recv;
  // Within one tick nothing says which was first.
  return sent_ms >= kAwaitedMs && (info.tcpi_bytes_received <= asked || received_ms > sent_ms);
}

bool HasEnded(int fd) {
  pollfd end = {fd, POLLRDHUP, 0};
  return poll(&end, 1, 0) == 1;
}

void SetUserTimeout(int fd, int timeout_ms) {
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

void EndConnection(int fd, uint64_t cookie) {
  // A second descriptor keeps the connection what it is between the look and the end.
  const OwnedFd held(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (held.valid() && SocketCookie(held.get()) == cookie) shutdown(held.get(), SHUT_RDWR);
}

}  // namespace coordd
