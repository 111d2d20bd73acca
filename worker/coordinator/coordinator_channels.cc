#include "worker/coordinator/coordinator_channels.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "worker/coordinator/grpc_coordinator_link.h"

namespace coordd {
namespace {

// So that nobody waits for a relay that has gone. One that does not answer is noticed later.
bool SomebodyListens(const std::string& relay) {
  const std::string path(absl::StripPrefix(relay, "unix:"));
  sockaddr_un address = {};
  if (path.size() >= sizeof(address.sun_path)) return false;
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  const bool connected =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return connected;
}

}  // namespace

absl::StatusOr<std::shared_ptr<CoordinatorChannels>> CoordinatorChannels::Open(
    std::vector<HostPort> addresses, TlsFiles tls, std::string relay) {
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> first, OpenChannel(addresses[0], tls));
  return std::shared_ptr<CoordinatorChannels>(new CoordinatorChannels(
      std::move(addresses), std::move(tls), std::move(relay), std::move(first)));
}

CoordinatorChannels::CoordinatorChannels(std::vector<HostPort> addresses, TlsFiles tls,
                                         std::string relay, std::shared_ptr<grpc::Channel> first)
    : addresses_(std::move(addresses)),
      tls_(std::move(tls)),
      relay_(std::move(relay)),
      current_(std::move(first)) {}

std::shared_ptr<grpc::Channel> CoordinatorChannels::Next() {
  MutexLock lock(&mu_);
  const size_t attempt = attempts_++;
  if (attempt == 0) return current_;
  auto another = OpenChannel(addresses_[attempt % addresses_.size()], tls_);
  if (another.ok()) current_ = *std::move(another);  // else the files for TLS have gone
  return current_;
}

std::unique_ptr<CoordinatorLink> CoordinatorChannels::NewLink() {
  {
    MutexLock lock(&mu_);
    const bool is_silent = relay_spoke_ != nullptr && !*relay_spoke_;
    relay_spoke_ = nullptr;
    const bool is_one = addresses_.size() == 1;  // else the store would not follow
    if (!relay_.empty() && is_one && !is_silent && SomebodyListens(relay_)) {
      relay_spoke_ = std::make_shared<std::atomic<bool>>(false);
      return NewGrpcCoordinatorLink(OpenRelayChannel(relay_), relay_spoke_);
    }
  }
  return NewGrpcCoordinatorLink(Next());
}

std::shared_ptr<grpc::Channel> CoordinatorChannels::Current() const {
  MutexLock lock(&mu_);
  return current_;
}

}  // namespace coordd
