#include "common/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/named_file.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

bool WriteAll(int fd, absl::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = write(fd, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    contents.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& path, absl::string_view contents, mode_t mode) {
  COORDD_RETURN_IF_ERROR(ExpectFileOrNothing(path));
  // In the same directory, since rename does not cross file systems.
  std::string temporary = path + ".XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat(path, " cannot be written: ", std::strerror(errno)));
  }
  bool ok = WriteAll(fd, contents) && fchmod(fd, mode) == 0;
  int error = errno;
  if (close(fd) != 0 && ok) {
    ok = false;
    error = errno;
  }
  if (ok && rename(temporary.c_str(), path.c_str()) != 0) {
    ok = false;
    error = errno;
  }
  if (ok) return absl::OkStatus();
  unlink(temporary.c_str());
  return absl::UnavailableError(absl::StrCat(path, " cannot be written: ", std::strerror(error)));
}

}  // namespace coordd
