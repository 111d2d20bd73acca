// The file at which workers find a relay: of one relay at a time, and gone with it. (io)
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/clock.h"

namespace coordd {

class RelaySocket {
 public:
  // Calls `bind` with the path of a socket to make, and moves that socket to `path`, in the place
  // of one at which nobody listens any more. UNAVAILABLE: somebody listens there, something else
  // lies there, or `bind` has made nothing; words that follow "cannot listen on PATH: ".
  static absl::StatusOr<std::unique_ptr<RelaySocket>> Make(
      const std::string& path, const std::function<void(const std::string& path)>& bind,
      Clock& clock);
  // Removes it, unless another one has its place by now. Call it before the socket is closed.
  ~RelaySocket();

  RelaySocket(const RelaySocket&) = delete;
  RelaySocket& operator=(const RelaySocket&) = delete;

 private:
  RelaySocket(std::string path, dev_t device, ino_t inode)
      : path_(std::move(path)), device_(device), inode_(inode) {}

  const std::string path_;
  const dev_t device_;
  const ino_t inode_;
};

}  // namespace coordd
