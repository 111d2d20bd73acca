// UCX's handles, one owner each. (io; only where UCX is built in)
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "worker/interfaces/group_layout.h"
#include "worker/transport/ucx/ucx_api.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace coordd {

// A UCX context and its worker. Movable; the worker's endpoints are closed before it ends.
class UcxContext {
 public:
  UcxContext() = default;
  UcxContext(UcxContext&& other) noexcept { *this = std::move(other); }
  UcxContext& operator=(UcxContext&& other) noexcept;
  ~UcxContext();

  // `ucx` outlives it. UNAVAILABLE; INVALID_ARGUMENT as Connect.
  static absl::StatusOr<UcxContext> Open(const UcxFunctions& ucx,
                                         const UcxTransportOptions& options,
                                         const GroupLayout& layout);

  // Gives active messages of this number to `handler` with `argument`, from the worker's progress.
  absl::Status Handle(unsigned number, ucp_am_recv_callback_t handler, void* argument);

  ucp_worker_h worker() const { return worker_; }
  // Over TCP, what UCX sends and receives in one part, without a rendezvous and without a copy on
  // the sender's side, label and padding aside; 0: it is not known that this is TCP.
  int64_t message_bytes_max() const { return message_bytes_max_; }
  // To be called before it is destroyed, with its endpoints closed: looks for up to a second
  // whether the worker can end. If not, it and the context stay until the process ends, and this
  // object has none any more.
  void End(Clock& clock);
  // Whether this UCX may end the process with its worker once a peer has been lost. 1.20.0 frees
  // twice what callbacks of a failed endpoint have left (3 of 23 runs); 1.19.0 and 1.20.1 do not.
  bool EndsBadlyAfterLosses() const;
  // The worker and the context stay until the process ends, and this object has none any more.
  void Keep();
  absl::StatusOr<std::string> Address() const;

 private:
  // Flushes. False: it was not done by the deadline.
  bool Flush(Clock& clock, absl::Time deadline);

  const UcxFunctions* ucx_ = nullptr;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int64_t message_bytes_max_ = 0;
};

}  // namespace coordd
