#include "server/program/service_notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace coordd {

absl::Status NotifyService(const Environment& environment, const std::string& state) {
  const auto found = environment.find("NOTIFY_SOCKET");
  if (found == environment.end() || found->second.empty()) return absl::OkStatus();
  const std::string& path = found->second;
  const auto failed = [&path](const char* why) {
    return absl::UnavailableError(absl::StrCat("NOTIFY_SOCKET ", path, ": ", why));
  };
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const bool is_absolute = path[0] == '/';
  if (!is_absolute && path[0] != '@') return failed("expected a path, or a name behind @");
  if (path.size() >= sizeof(address.sun_path)) return failed("the name is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  if (!is_absolute) address.sun_path[0] = '\0';  // a name that is in no file system
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return failed(std::strerror(errno));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  const ssize_t sent = sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address), length);
  const int error = errno;
  close(fd);
  return sent < 0 ? failed(std::strerror(error)) : absl::OkStatus();
}

}  // namespace coordd
