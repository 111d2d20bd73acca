// A directory of this machine that holds one coordd's state: who has it, and what has been seen in
// it. (io)
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace coordd {

// "NFS" for statfs's f_type of a file system whose locks and syncs other machines take part in;
// empty for every other.
absl::string_view NetworkFileSystemName(int64_t f_type);

// The nearest existing folder of `path` is on such a file system: its name, else empty.
std::string NetworkFileSystemOf(const std::string& path);

// What errno says of a file of the state, as a sentence: "PATH cannot be made: Permission denied".
// FAILED_PRECONDITION: somebody has to change the place first. UNAVAILABLE: it may pass.
absl::Status FileError(const std::string& path, absl::string_view what);

// What tells a file from its copies: inode and time of creation. FileError: it cannot be read.
absl::StatusOr<std::string> FileIdentity(const std::string& path);

// Makes the entries of the directory durable.
absl::Status SyncDirectory(const std::string& path);

// Holds the lock of a state directory. The file `lock` in it says who has it, and how far its
// contents had come when they were last written: what is older than that was put back. One owner.
class StateDirectory {
 public:
  struct Witness {
    std::string cluster_id;  // empty: none was noted
    int64_t commits = 0;
  };

  // Makes the directory if it is missing (0700). ALREADY_EXISTS: another process has the lock, and
  // who. FAILED_PRECONDITION: on a network file system, or somebody else's, or FileError's, as
  // UNAVAILABLE.
  static absl::StatusOr<StateDirectory> Lock(const std::string& path, const std::string& owner);
  ~StateDirectory();
  StateDirectory(StateDirectory&& other) noexcept;
  StateDirectory& operator=(StateDirectory&& other) = delete;

  const std::string& path() const { return path_; }
  const Witness& found() const { return found_; }  // when it was locked

  // Notes how far the file has come. The note survives the process, not the machine: it is not
  // synced, so it is never ahead of what was.
  absl::Status Note(const Witness& witness);

 private:
  StateDirectory(std::string path, std::string owner, int fd)
      : path_(std::move(path)), owner_(std::move(owner)), fd_(fd) {}
  absl::Status Write(const std::string& owner, const Witness& witness);

  const std::string path_;
  const std::string owner_;
  int fd_;
  Witness found_;
  Witness noted_;
};

}  // namespace coordd
