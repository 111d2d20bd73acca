#include "worker/base/unix_message.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace coordd {
namespace {

struct SocketAddress {
  sockaddr_un bytes = {};
  socklen_t size = 0;
};

// An abstract name starts with a zero byte and is as long as the address says.
SocketAddress AbstractAddress(absl::string_view name) {
  SocketAddress address;
  COORDD_CHECK(name.size() + 1 <= sizeof(address.bytes.sun_path));
  address.bytes.sun_family = AF_UNIX;
  std::memcpy(address.bytes.sun_path + 1, name.data(), name.size());
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

absl::Status Failed(absl::string_view call) {
  return absl::UnavailableError(
      absl::ErrnoToStatus(errno, absl::StrCat(call, " of a Unix socket failed")).message());
}

absl::StatusOr<OwnedFd> NewSocket() {
  OwnedFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Failed("creation");
  return fd;
}

}  // namespace

absl::StatusOr<OwnedFd> ListenUnix(absl::string_view abstract_name, int backlog) {
  absl::StatusOr<OwnedFd> listener = NewSocket();
  if (!listener.ok()) return listener;
  const SocketAddress address = AbstractAddress(abstract_name);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (bind(listener->get(), generic, address.size) != 0) return Failed("binding");
  if (listen(listener->get(), backlog) != 0) return Failed("listening");
  return listener;
}

absl::StatusOr<std::optional<OwnedFd>> ConnectUnix(absl::string_view abstract_name) {
  absl::StatusOr<OwnedFd> fd = NewSocket();
  if (!fd.ok()) return fd.status();
  const SocketAddress address = AbstractAddress(abstract_name);
  const auto* generic = reinterpret_cast<const sockaddr*>(&address.bytes);
  if (connect(fd->get(), generic, address.size) == 0) return std::optional(*std::move(fd));
  if (errno == EAGAIN || errno == EINTR) return std::optional<OwnedFd>();
  return Failed("connecting");
}

OwnedFd AcceptUnix(int listener) {
  return OwnedFd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

absl::Status SendUnixMessage(int socket, absl::string_view text, int fd) {
  COORDD_CHECK(!text.empty() && text.size() <= kUnixMessageMaxBytes);
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(text.size()) ? absl::OkStatus() : Failed("sending");
}

absl::StatusOr<std::optional<UnixMessage>> ReceiveUnixMessage(int socket) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  std::array<char, kUnixMessageMaxBytes> text = {};
  iovec part{text.data(), text.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::optional<UnixMessage>();
  if (size < 0) return Failed("receiving");
  UnixMessage received;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    received.fd = OwnedFd(fd);
  }
  if (size == 0) return absl::UnavailableError("the other side has closed its Unix socket");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", size,
                                                   " bytes, expected at most ",
                                                   kUnixMessageMaxBytes, " and one descriptor"));
  }
  received.text.assign(text.data(), static_cast<size_t>(size));
  return std::optional<UnixMessage>(std::move(received));
}

absl::StatusOr<int32_t> CheckSameUser(int socket) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return Failed("asking for the peer");
  if (credentials.uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the peer runs as user ", credentials.uid, ", expected ", geteuid()));
  }
  return static_cast<int32_t>(credentials.pid);
}

OwnedFd WatchProcess(int32_t pid) {
  if (pid <= 0) return OwnedFd();
  return OwnedFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));  // close-on-exec by itself
}

}  // namespace coordd
