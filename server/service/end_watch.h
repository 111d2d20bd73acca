// Waits for the end of coordd: a signal, the end of the process that started it, or no more
// workers. (io)
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "server/job/end_rule.h"
#include "server/service/coord_server.h"

namespace coordd {

struct EndWatchOptions {
  EndRuleOptions rule;
  pid_t owner = 0;  // --exit-with; 0: nobody
};

// SIGTERM and SIGINT end coordd, and SIGHUP one that has a terminal, which may have gone; one
// without reads its certificates again. SIGUSR1 ends it, too, but so that its jobs go on when it is
// started again; SIGUSR2 from its owner says that the job is over, as the
// owner's own end does.
sigset_t EndSignals();

// Made before the first thread, with EndSignals blocked. One thread.
class EndWatch {
 public:
  // NOT_FOUND: the owner has ended already.
  static absl::StatusOr<EndWatch> Start(const EndWatchOptions& options);
  ~EndWatch();
  EndWatch(EndWatch&& other) noexcept;
  EndWatch& operator=(EndWatch&&) = delete;

  // While there is no server yet: waits for at most `time`. Empty: nothing has ended it.
  std::string AwaitBefore(absl::Duration time);

  // Blocks. Returns why coordd ends: "SIGTERM", or EndRule's sentence.
  std::string Await(CoordServer& server, Clock& clock);

 private:
  EndWatch(const EndWatchOptions& options, int signals, int owner)
      : options_(options), signals_(signals), owner_(owner) {}
  std::string ReadSignal();  // why coordd ends; empty: it does not

  const EndWatchOptions options_;
  int signals_;  // signalfd
  int owner_;    // pidfd; -1: none
  bool owner_gone_ = false;
  bool reload_ = false;  // is wanted
};

}  // namespace coordd
