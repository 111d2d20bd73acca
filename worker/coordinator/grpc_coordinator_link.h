// The stream to coordd over gRPC. (io)
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"
#include "worker/coordinator/coordinator_link.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace coordd {

// A channel with keepalive: a peer whose machine or network is gone is noticed within
// kKeepaliveInterval + kKeepaliveTimeout even if nothing is sent. INVALID_ARGUMENT: TLS files.
absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const HostPort& coordinator,
                                                           const TlsFiles& tls);

// Opens a channel to the relay of this node, unix:/PATH. Who may open that file is trusted, so
// there is no TLS.
std::shared_ptr<grpc::Channel> OpenRelayChannel(const std::string& relay);

// A stream that is not started yet. It connects when started; a coordd that cannot be reached shows
// as on_closed(UNAVAILABLE). `spoke`, if any, becomes true with the first message that comes.
std::unique_ptr<CoordinatorLink> NewGrpcCoordinatorLink(
    std::shared_ptr<grpc::Channel> channel, std::shared_ptr<std::atomic<bool>> spoke = nullptr);

}  // namespace coordd
