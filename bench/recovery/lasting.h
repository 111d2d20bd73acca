// A coordd whose state outlives it. (io)
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "bench/control/server_process.h"

namespace coordd::bench {

// A new directory, which is gone with it; empty path: there is none.
class Directory {
 public:
  Directory();
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// On SQLite in the directory `state`.
absl::StatusOr<std::unique_ptr<ServerProcess>> StartLasting(const std::string& listen,
                                                            const std::string& state);

}  // namespace coordd::bench
