// The ways to coordd: one channel after the other, over all its addresses. (io)
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"
#include "worker/coordinator/coordinator_link.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace coordd {

// Thread-safe.
class CoordinatorChannels {
 public:
  // `addresses`: of one coordd after the other, as they stand by for each other; at least one.
  // `relay`: unix:/PATH of the one of this node, if it has one. Statuses: as OpenChannel, which is
  // called for the first.
  static absl::StatusOr<std::shared_ptr<CoordinatorChannels>> Open(std::vector<HostPort> addresses,
                                                                   TlsFiles tls,
                                                                   std::string relay = "");

  // The channel for a new session: the first one, then each time a new one to the next address.
  // (One that has failed waits before it looks again, and the time between attempts is not gRPC's
  // to choose.)
  std::shared_ptr<grpc::Channel> Next();
  // A link over Next; or through the relay, where somebody listens there and the link before, if it
  // went through it too, has brought something.
  std::unique_ptr<CoordinatorLink> NewLink();
  // The channel to where coordd was last looked for.
  std::shared_ptr<grpc::Channel> Current() const;

 private:
  CoordinatorChannels(std::vector<HostPort> addresses, TlsFiles tls, std::string relay,
                      std::shared_ptr<grpc::Channel> first);

  // Constant after construction.
  const std::vector<HostPort> addresses_;
  const TlsFiles tls_;
  const std::string relay_;

  // Guarded by mu_.
  mutable Mutex mu_;
  size_t attempts_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<grpc::Channel> current_ ABSL_GUARDED_BY(mu_);
  // Whether the last link through the relay has brought something; nullptr: there was none.
  std::shared_ptr<std::atomic<bool>> relay_spoke_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
