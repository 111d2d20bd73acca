// Which address of its metrics a worker may tell: one of its own. (io)
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// Thread-safe. Prometheus asks for whatever /v1/targets lists, from where it stands: a worker that
// could name any address would let it ask for pages that the worker itself cannot reach.
class MetricsAddressRule {
 public:
  // `any`: every address is taken, as where workers come from another address than they serve at.
  MetricsAddressRule(bool any, Clock& clock) : any_(any), clock_(clock) {}

  // Takes the address out of the Join, and says so in the log, if it is not the peer's. `peer`: as
  // ServerContext::peer has it, of the worker or of its node's relay.
  void Apply(absl::string_view peer, v1::Join& join);

  // Whether that address, "HOST:PORT", is one of the peer's: the one it comes from; or, if that is
  // this machine, any of this machine.
  static bool IsOf(absl::string_view peer, const std::string& metrics_address);

 private:
  const bool any_;
  Clock& clock_;
  Mutex mu_;
  LogLimit lines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
