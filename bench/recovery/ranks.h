// The ranks of one job and their board. (io)
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/recovery/board.h"
#include "common/base/owned_fd.h"

namespace coordd::bench {

// Between two looks at a board, which nobody signals.
void Pause(absl::Duration duration);

struct RecoveryJob {
  std::string name;
  int32_t workers = 2;   // at the start
  int64_t elements = 1;  // of a step's reduction
  bool grows = false;    // one more may come, whom the members let in
  std::string on_failure = "raise";
};

// One owner. Ended, the hard way, with it.
class RecoveryRanks {
 public:
  // `coordd`: "HOST:PORT", or several with commas.
  static absl::StatusOr<std::unique_ptr<RecoveryRanks>> Start(const std::string& coordd,
                                                              const RecoveryJob& job);
  ~RecoveryRanks();
  RecoveryRanks(const RecoveryRanks&) = delete;
  RecoveryRanks& operator=(const RecoveryRanks&) = delete;

  const RecoverySlot& slot(int32_t worker) const { return board_->slots[worker]; }
  int32_t workers() const { return static_cast<int32_t>(pids_.size()); }
  pid_t pid(int32_t worker) const { return pids_[static_cast<size_t>(worker)]; }
  // One more, behind the others.
  absl::Status Add();
  // With SIGKILL or SIGSTOP: nobody waits for it from then on.
  void Hit(int32_t worker, int signal);
  bool is_hit(int32_t worker) const { return hit_ == worker; }
  // Lets one that was stopped go on; whether it ends within `timeout`, and not as if all were well.
  bool GivesUp(int32_t worker, absl::Duration timeout);
  // Tells them to end. How many did not, or ended badly, within `timeout`, beside the one that was
  // hit.
  int32_t Stop(absl::Duration timeout);

 private:
  RecoveryRanks(std::string coordd, RecoveryJob job)
      : coordd_(std::move(coordd)), job_(std::move(job)) {}

  const std::string coordd_;
  const RecoveryJob job_;
  OwnedFd memory_;
  RecoveryBoard* board_ = nullptr;
  std::vector<pid_t> pids_;  // 0: collected
  int32_t hit_ = -1;
};

}  // namespace coordd::bench
