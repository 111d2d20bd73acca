#include "relay/relay_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/owned_fd.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/unix_path.h"
#include "common/base/wait_until.h"

namespace coordd {
namespace {

constexpr int kNameBytes = 3;  // six digits
constexpr absl::Duration kOthersTake = absl::Seconds(5);
constexpr absl::Duration kLooksEvery = absl::Milliseconds(10);

absl::Status Failed(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

std::string FolderOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

// The right to change what is at a path: a locked file beside it, which goes with this object.
class StartLock {
 public:
  static absl::StatusOr<std::unique_ptr<StartLock>> Take(const std::string& path, Clock& clock) {
    const std::string file = absl::StrCat(path, ".lock");
    const absl::Time deadline = clock.Now() + kOthersTake;
    while (true) {
      OwnedFd fd(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
      if (!fd.valid())
        return Failed(absl::StrCat("no file can be made in the folder ", FolderOf(path)));
      if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
        if (IsAt(fd, file)) return std::unique_ptr<StartLock>(new StartLock(file, std::move(fd)));
        continue;  // its last owner has removed it
      }
      if (errno != EWOULDBLOCK && errno != EINTR)
        return Failed(absl::StrCat("the file ", file, " cannot be locked"));
      if (clock.Now() >= deadline)
        return absl::UnavailableError(
            absl::StrCat("another relay that starts there holds ", file, " locked"));
      WaitUntil(clock, clock.Now() + kLooksEvery);
    }
  }
  ~StartLock() { unlink(file_.c_str()); }

  StartLock(const StartLock&) = delete;
  StartLock& operator=(const StartLock&) = delete;

 private:
  StartLock(std::string file, OwnedFd fd) : file_(std::move(file)), fd_(std::move(fd)) {}

  static bool IsAt(const OwnedFd& fd, const std::string& file) {
    struct stat held = {}, found = {};
    return fstat(fd.get(), &held) == 0 && lstat(file.c_str(), &found) == 0 &&
           held.st_dev == found.st_dev && held.st_ino == found.st_ino;
  }

  const std::string file_;
  const OwnedFd fd_;
};

// errno of a connection to `path`; 0: somebody listens.
int ConnectError(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, kUnixPathBytesMax);
  const OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  return connect(fd.get(), generic, sizeof(address)) == 0 ? 0 : errno;
}

// Whether a new socket may take the place: nothing is there, or what a dead process has left.
absl::Status CheckFree(const std::string& path) {
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0)
    return errno == ENOENT ? absl::OkStatus() : Failed("what is there cannot be told");
  if (!S_ISSOCK(found.st_mode)) {
    const char* const what = S_ISDIR(found.st_mode)   ? "a folder"
                             : S_ISLNK(found.st_mode) ? "a symbolic link"
                                                      : "a file that is no socket";
    return absl::UnavailableError(
        absl::StrCat(what, " is there already: remove it or give another path"));
  }
  const int error = ConnectError(path);
  if (error == ECONNREFUSED || error == ENOENT) return absl::OkStatus();
  if (error == 0 || error == EAGAIN || error == EPROTOTYPE)
    return absl::UnavailableError(
        "another relay or program listens there: end it or give another path");
  errno = error;
  return Failed("nobody can tell whether somebody listens at the socket that is there");
}

}  // namespace

absl::StatusOr<std::unique_ptr<RelaySocket>> RelaySocket::Make(
    const std::string& path, const std::function<void(const std::string& path)>& bind,
    Clock& clock) {
  COORDD_ASSIGN_OR_RETURN(const std::unique_ptr<StartLock> lock, StartLock::Take(path, clock));
  COORDD_RETURN_IF_ERROR(CheckFree(path));
  // Whoever closes a socket may remove the name that it was bound to, as gRPC does, whatever has
  // that name by then. So that name is nobody else's; and the place is never empty in between.
  const std::string made = absl::StrCat(path, ".", SecretHex(kNameBytes));
  bind(made);
  struct stat found = {};
  if (lstat(made.c_str(), &found) != 0 || !S_ISSOCK(found.st_mode))
    return absl::UnavailableError(
        absl::StrCat("no socket can be made in the folder ", FolderOf(path)));
  if (rename(made.c_str(), path.c_str()) != 0) {
    const absl::Status failed = Failed("the socket cannot be put there");
    unlink(made.c_str());
    return failed;
  }
  return std::unique_ptr<RelaySocket>(new RelaySocket(path, found.st_dev, found.st_ino));
}

RelaySocket::~RelaySocket() {
  struct stat found = {};
  if (lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_)
    unlink(path_.c_str());
}

}  // namespace coordd
