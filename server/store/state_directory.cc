#include "server/store/state_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/named_file.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr size_t kLockFileBytes = 512;  // one write replaces all of it
constexpr char kNobody[] = "nobody";

std::string LockPath(const std::string& directory) { return directory + "/lock"; }

std::string ReadLock(int fd) {
  std::string text(kLockFileBytes, '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

// The rest of the line of `text` that starts with `name` and a space; empty: there is none.
std::string Field(const std::string& text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, " ")) {
      return std::string(line);
    }
  }
  return "";
}

// "0755".
std::string Octal(mode_t mode) { return absl::StrCat("0", mode >> 6 & 7, mode >> 3 & 7, mode & 7); }

// Whoever may write to the folder around it could put another directory in its place. A sticky one
// (/tmp) forbids that.
absl::Status CheckParent(const std::string& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::canonical(path, error);
  if (error) return absl::UnavailableError(absl::StrCat(path, " cannot be read"));
  const std::string parent = whole.parent_path();
  struct stat found = {};
  if (stat(parent.c_str(), &found) != 0) return FileError(parent, "cannot be read");
  // In a container users of outside look like this one, and nobody inside can be it.
  constexpr uid_t kUnmapped = 65534;
  if (found.st_uid != 0 && found.st_uid != geteuid() && found.st_uid != kUnmapped) {
    return absl::FailedPreconditionError(
        absl::StrCat(parent, " belongs to user ", found.st_uid, ", who could replace ", path,
                     " in it, which holds coordd's state; expected user ", geteuid(), " or root"));
  }
  const bool replaceable =
      (found.st_mode & (S_IWGRP | S_IWOTH)) != 0 && (found.st_mode & S_ISVTX) == 0;
  if (!replaceable) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(parent, " has mode ", Octal(found.st_mode), ", so others could replace ", path,
                   " in it, which holds coordd's state; expected 0755 (chmod go-w ", parent, ")"));
}

// Links are of a time when others could write to it, perhaps: what they point at would be written.
// So would be the file that a hard link is another name of. Of a pipe or a device SQLite would say
// that the disk does not work.
absl::Status CheckEntries(const std::string& path) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    const bool linked = entry.is_symlink(error);
    struct stat found = {};
    if (lstat(entry.path().c_str(), &found) == 0 && !linked && !S_ISREG(found.st_mode) &&
        !S_ISDIR(found.st_mode)) {
      return absl::FailedPreconditionError(
          absl::StrCat(entry.path().string(), " is ", KindOfFile(found.st_mode),
                       ", expected a file of coordd's own: remove it"));
    }
    if (!linked && (!entry.is_regular_file(error) || entry.hard_link_count(error) < 2)) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        entry.path().string(), linked ? " is a link" : " has another name (a hard link)",
        ", expected a file of coordd's own: remove it"));
  }
  return absl::OkStatus();
}

// In /tmp somebody else may have put one there before us, which leads into a directory of ours.
absl::Status CheckWhoseLink(const std::string& path) {
  struct stat found = {};
  if (lstat(path.c_str(), &found) != 0) return FileError(path, "cannot be read");
  if (!S_ISLNK(found.st_mode) || found.st_uid == 0 || found.st_uid == geteuid())
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path, " is a link that user ", found.st_uid,
                                                    " has made, expected user ", geteuid(),
                                                    ", who runs this coordd, or root"));
}

absl::Status MakeDirectory(const std::string& path) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return FileError(path, "cannot be made");
  }
  COORDD_RETURN_IF_ERROR(CheckWhoseLink(path));
  struct stat found = {};
  if (stat(path.c_str(), &found) != 0) return FileError(path, "cannot be read");
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is not a directory: --store sqlite:PATH names the directory for coordd's state"));
  }
  if (found.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " belongs to user ", found.st_uid,
                                                      ", expected ", geteuid(),
                                                      ", which runs this coordd"));
  }
  if ((found.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has mode ", Octal(found.st_mode),
                     ", so others can reach coordd's state; expected 0700 (chmod 700 ", path, ")"));
  }
  COORDD_RETURN_IF_ERROR(CheckParent(path));
  return CheckEntries(path);
}

}  // namespace

absl::string_view NetworkFileSystemName(int64_t f_type) {
  // linux/magic.h, statfs(2), and what the vendors document.
  static const std::vector<std::pair<uint32_t, absl::string_view>> known = {
      {0x6969, "NFS"},        {0x517B, "SMB"},        {0xFE534D42, "SMB"},
      {0xFF534D42, "CIFS"},   {0x0BD00BD0, "Lustre"}, {0x47504653, "GPFS"},
      {0x00C36400, "CephFS"}, {0x01021997, "9P"},     {0x5346414F, "AFS"},
      {0x6B414653, "AFS"},    {0x73757245, "Coda"},   {0x19830326, "BeeGFS"},
      {0xAAD7AAEA, "PanFS"},  {0x20030528, "PVFS2"},  {0x7461636F, "OCFS2"},
      {0x01161970, "GFS2"},   {0x786F4256, "vboxsf"}, {0xBACBACBC, "VMware's shared folders"},
      {0x19120523, "WekaFS"},
  };
  for (const auto& [magic, name] : known) {
    if (magic == static_cast<uint32_t>(f_type)) return name;
  }
  return "";
}

absl::Status FileError(const std::string& path, absl::string_view what) {
  const int error = errno;  // before anything else can change it
  const std::string text = absl::StrCat(path, " ", what, ": ", std::strerror(error));
  switch (error) {
    case EACCES:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOENT:
    case ENOTDIR:
    case ENXIO:  // a socket, or a device that is not there
    case EPERM:
    case EROFS:
      return absl::FailedPreconditionError(text);
    default:
      return absl::UnavailableError(text);
  }
}

std::string NetworkFileSystemOf(const std::string& path) {
  struct statfs found = {};
  std::filesystem::path folder = std::filesystem::absolute(path);
  while (statfs(folder.c_str(), &found) != 0) {
    if (!folder.has_relative_path()) return "";
    folder = folder.parent_path();
  }
  return std::string(NetworkFileSystemName(found.f_type));
}

absl::StatusOr<std::string> FileIdentity(const std::string& path) {
  struct statx found = {};
  if (statx(AT_FDCWD, path.c_str(), AT_STATX_SYNC_AS_STAT, STATX_INO | STATX_BTIME, &found) != 0) {
    return FileError(path, "cannot be read");
  }
  // A file system without times of creation leaves them 0: the inode alone has to do.
  return absl::StrCat("inode ", found.stx_ino, " made ", found.stx_btime.tv_sec, ".",
                      absl::Dec(found.stx_btime.tv_nsec, absl::kZeroPad9));
}

absl::Status SyncDirectory(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError(path, "cannot be opened");
  const bool ok = fsync(fd) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  return ok ? absl::OkStatus() : FileError(path, "cannot be synced");
}

absl::StatusOr<StateDirectory> StateDirectory::Lock(const std::string& path,
                                                    const std::string& owner) {
  if (const std::string name = NetworkFileSystemOf(path); !name.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is on ", name,
        ", a network file system: its locks and syncs are not to be trusted with coordd's state; "
        "give --store sqlite:PATH on a disk of this machine, or --store etcd:ENDPOINT"));
  }
  COORDD_RETURN_IF_ERROR(MakeDirectory(path));
  const int fd =
      open(LockPath(path).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return FileError(LockPath(path), "cannot be opened");
  StateDirectory directory(path, owner, fd);
  if (absl::Status is_file = ExpectFile(fd, LockPath(path)); !is_file.ok()) {
    close(std::exchange(directory.fd_, -1));
    return is_file;
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const std::string who = Field(ReadLock(fd), "owner");
    close(std::exchange(directory.fd_, -1));
    return absl::AlreadyExistsError(absl::StrCat(
        "the state in ", path, " belongs to ",
        who.empty() || who == kNobody ? "another coordd" : "the coordd with " + who,
        ", which is running: to go on with its state, as in an upgrade, wait until it has "
        "ended; a coordd for other jobs beside it takes another --store"));
  }
  const std::string text = ReadLock(fd);
  directory.found_.cluster_id = Field(text, "cluster");
  if (!absl::SimpleAtoi(Field(text, "commits"), &directory.found_.commits)) {
    directory.found_.commits = 0;
  }
  directory.noted_ = directory.found_;
  COORDD_RETURN_IF_ERROR(directory.Write(owner, directory.found_));
  return directory;
}

StateDirectory::StateDirectory(StateDirectory&& other) noexcept
    : path_(other.path_),
      owner_(other.owner_),
      fd_(std::exchange(other.fd_, -1)),
      found_(other.found_),
      noted_(other.noted_) {}

StateDirectory::~StateDirectory() {
  if (fd_ < 0) return;
  Write(kNobody, noted_).IgnoreError();  // the lock is what counts
  close(fd_);
}

absl::Status StateDirectory::Note(const Witness& witness) {
  noted_ = witness;
  return Write(owner_, witness);
}

absl::Status StateDirectory::Write(const std::string& owner, const Witness& witness) {
  std::string text = absl::StrCat("owner ", owner, "\ncluster ", witness.cluster_id, "\ncommits ",
                                  witness.commits, "\n");
  text.resize(kLockFileBytes, '\n');
  const ssize_t written = pwrite(fd_, text.data(), text.size(), 0);
  if (written == static_cast<ssize_t>(text.size())) return absl::OkStatus();
  return FileError(LockPath(path_), "cannot be written");
}

}  // namespace coordd
