// Messages, some with a file descriptor, between processes of one machine. (io)
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/owned_fd.h"

namespace coordd {

// All sockets are SOCK_SEQPACKET (a message arrives as a whole), non-blocking, close-on-exec, and
// have names in the abstract namespace, which need no file.

// UNAVAILABLE.
absl::StatusOr<OwnedFd> ListenUnix(absl::string_view abstract_name, int backlog);
// nullopt: the listener's backlog is full, try again. UNAVAILABLE: nobody listens.
absl::StatusOr<std::optional<OwnedFd>> ConnectUnix(absl::string_view abstract_name);
// Accepts a connection; the descriptor is invalid when nobody waits.
OwnedFd AcceptUnix(int listener);

struct UnixMessage {
  std::string text;
  OwnedFd fd;  // invalid: there is none
};
// `fd`: -1 if there is none. UNAVAILABLE: the other side is gone, or its buffer is full.
absl::Status SendUnixMessage(int socket, absl::string_view text, int fd);
// nullopt: nothing there yet. UNAVAILABLE: the other side is gone. INVALID_ARGUMENT: a message
// beyond kUnixMessageMaxBytes or with more than one descriptor.
inline constexpr size_t kUnixMessageMaxBytes = 256;
absl::StatusOr<std::optional<UnixMessage>> ReceiveUnixMessage(int socket);

// PERMISSION_DENIED: the other side's process runs as another user. Returns its pid, 0 when it is
// not visible from this pid namespace.
absl::StatusOr<int32_t> CheckSameUser(int socket);
// A descriptor that becomes readable when the process ends; invalid where there is none.
OwnedFd WatchProcess(int32_t pid);

}  // namespace coordd
