// What is told of the state to whoever looks at all of it: the pages of HTTP. (io)
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

class Coordinator;

// Thread-safe. The state of all jobs is copied in turns of coordd's, a part in each, in which
// nobody is heard. So one that took long is told again to whoever asks next: copies take a tenth of
// coordd's time at most.
class StateCopies {
 public:
  // A copy that took no longer is told once.
  static constexpr absl::Duration kFree = absl::Milliseconds(5);
  static constexpr int kShare = 10;  // one part of so many

  using State = std::shared_ptr<const v1::ServerState>;

  // `coordinator` outlives it. `complete` adds what the coordinator does not know.
  StateCopies(Coordinator& coordinator, Clock& clock,
              std::function<void(v1::ServerState*)> complete);

  // UNAVAILABLE: as Coordinator::Describe. Blocks.
  absl::StatusOr<State> Get();

 private:
  // Constant after construction.
  Coordinator& coordinator_;
  Clock& clock_;
  const std::function<void(v1::ServerState*)> complete_;

  // Guarded by mu_, which is held while one is made. Who asks meanwhile is told that one, if it
  // took long, or that there was none: he waits no longer than the first.
  Mutex mu_;
  State last_ ABSL_GUARDED_BY(mu_);  // null: it is not to be told again
  absl::Time serves_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  absl::Time failed_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace coordd
