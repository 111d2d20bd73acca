#include "worker/coordinator_channels.h"

#include <utility>

#include "common/status_macros.h"
#include "worker/grpc_coordinator_link.h"

namespace coordd {

absl::StatusOr<std::shared_ptr<CoordinatorChannels>> CoordinatorChannels::Open(
    std::vector<HostPort> addresses, TlsFiles tls) {
  COORDD_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> first, OpenChannel(addresses[0], tls));
  return std::shared_ptr<CoordinatorChannels>(
      new CoordinatorChannels(std::move(addresses), std::move(tls), std::move(first)));
}

CoordinatorChannels::CoordinatorChannels(std::vector<HostPort> addresses, TlsFiles tls,
                                         std::shared_ptr<grpc::Channel> first)
    : addresses_(std::move(addresses)), tls_(std::move(tls)), current_(std::move(first)) {}

std::shared_ptr<grpc::Channel> CoordinatorChannels::Next() {
  MutexLock lock(&mu_);
  const size_t attempt = attempts_++;
  if (attempt == 0) return current_;
  auto another = OpenChannel(addresses_[attempt % addresses_.size()], tls_);
  if (another.ok()) current_ = *std::move(another);  // else the files for TLS have gone
  return current_;
}

std::shared_ptr<grpc::Channel> CoordinatorChannels::Current() const {
  MutexLock lock(&mu_);
  return current_;
}

}  // namespace coordd
