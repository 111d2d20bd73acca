// A server that is measured: a process of its own, so that its CPU time and memory are its alone.
// (io)
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/owned_fd.h"
#include "common/net/address.h"

namespace coordd::bench {

// The path of a program that was built with this one.
std::string BesideUs(absl::string_view program);

// One owner.
class ServerProcess {
 public:
  // Starts `command` (a path and arguments) with "--ready-fd FD" behind it and waits until it
  // writes
  // {"listen": "HOST:PORT", ...} there, 20 s at most. What it says on stderr is shown. UNAVAILABLE:
  // it did not, or cannot be started.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(std::vector<std::string> command);
  // The two halves of it, for one that is not ready at once.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Launch(std::vector<std::string> command);
  absl::Status AwaitReady();
  // coordd as users have it, on loopback, remembering nothing, silent but for errors (at the end of
  // a job that is cut off it would tell of each rank); it ends with this process. `arguments` come
  // behind. `tls`: a folder of `coordctl certs`; empty: it speaks no TLS.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> StartCoordd(
      const std::vector<std::string>& arguments, const std::string& tls = "");
  ~ServerProcess();  // ends it, the hard way
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const HostPort& address() const { return address_; }
  // On all its threads, those that have ended too, since it was started.
  absl::Duration CpuTime() const;
  int64_t ResidentBytes() const;

 private:
  ServerProcess(pid_t pid, std::string name, OwnedFd ready)
      : pid_(pid), name_(std::move(name)), ready_(std::move(ready)) {}

  const pid_t pid_;
  const std::string name_;
  const OwnedFd ready_;
  HostPort address_;  // once it is ready
};

}  // namespace coordd::bench
