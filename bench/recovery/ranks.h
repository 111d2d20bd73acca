// The ranks of one job and their board. (io)
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "bench/recovery/board.h"
#include "common/address.h"
#include "worker/unique_fd.h"

namespace coordd::bench {

// Between two looks at a board, which nobody signals.
void Pause(absl::Duration duration);

// One owner. Ended, the hard way, with it.
class RecoveryRanks {
 public:
  static absl::StatusOr<std::unique_ptr<RecoveryRanks>> Start(const HostPort& coordd,
                                                              const std::string& job,
                                                              int32_t workers, int64_t elements);
  ~RecoveryRanks();
  RecoveryRanks(const RecoveryRanks&) = delete;
  RecoveryRanks& operator=(const RecoveryRanks&) = delete;

  const RecoverySlot& slot(int32_t worker) const { return board_->slots[worker]; }
  int32_t workers() const { return static_cast<int32_t>(pids_.size()); }
  pid_t pid(int32_t worker) const { return pids_[static_cast<size_t>(worker)]; }
  void Kill(int32_t worker);
  bool killed(int32_t worker) const { return killed_ == worker; }
  // Tells them to end. How many did not, or ended badly, within `timeout`, beside the killed one.
  int32_t Stop(absl::Duration timeout);

 private:
  RecoveryRanks() = default;

  UniqueFd memory_;
  RecoveryBoard* board_ = nullptr;
  std::vector<pid_t> pids_;  // 0: collected
  int32_t killed_ = -1;
};

}  // namespace coordd::bench
