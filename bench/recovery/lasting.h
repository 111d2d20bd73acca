// Coordds whose state outlives them. (io)
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
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

// The coordd of a job, which dies again and again and comes back with all that it had stored: on
// SQLite it is started again; on etcd another one stands by, and follows it.
class MortalCoordd {
 public:
  // `etcd`: "HOST:PORT", with its lease on what it stores; empty: SQLite.
  static absl::StatusOr<std::unique_ptr<MortalCoordd>> Start(const std::string& etcd,
                                                             absl::Duration store_lease);

  // For workers: "HOST:PORT", or two with a comma.
  const std::string& addresses() const { return addresses_; }
  // With SIGKILL; returns when there is one again.
  absl::Status Kill();
  // Before the next Kill: somebody stands by again, where that is how it comes back.
  absl::Status Prepare();

 private:
  MortalCoordd() = default;
  std::vector<std::string> Command(const std::string& listen) const;

  Directory directory_;
  std::vector<std::string> store_;  // arguments
  bool has_standby_ = false;
  std::string addresses_;
  std::unique_ptr<ServerProcess> leader_;
  std::unique_ptr<ServerProcess> standby_;
  std::string leads_at_, stands_by_at_;
};

}  // namespace coordd::bench
