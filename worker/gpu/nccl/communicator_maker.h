// Brings the ranks of a process set together in a communicator: the id's way from rank 0 to the
// others, and NCCL's init. (io)
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "worker/gpu/nccl/kept_communicator.h"
#include "worker/gpu/nccl/nccl_communicator.h"
#include "worker/gpu/nccl/nccl_watchdog.h"

namespace coordd {

struct CommunicatorMakerOptions {
  // From `scalable_from` ranks on, an id for each `ranks_per_id` ranks, minted by the first of
  // them: whoever mints an id has the thread that the ranks of that id talk to, and with one id all
  // of them would talk to rank 0.
  int32_t scalable_from = 256;
  int32_t ranks_per_id = 128;
  // After this a communicator that is being shrunk is given up, by all ranks, for a new one.
  absl::Duration shrink_limit = absl::Seconds(20);
  bool direct = false;  // NcclCommunicator::BeginDirect; all ranks say the same
};

// The thread "nccl-init" does what waits: the store, and NCCL. A rank that mints an id leaves it in
// the store under "nccl/SET/id/NUMBER" ("nccl-node/SET/NODE/id/NUMBER") and deletes it when its
// communicator is there, by when everybody has read all of them. So they serve once. They are
// secrets, and no message has them.
//
// With a ShrinkPlan, which all ranks have or none, it shrinks that communicator instead. Each rank
// counts itself in "nccl/SET/shrunk" when its own is there; who makes that all of them leaves "yes"
// as "nccl/SET/shrink", and one that fails or is late leaves "no" there and is not counted, so only
// one of the two can ever be left. With "no" all ranks go the way of the id, with another
// communicator.
class CommunicatorMaker {
 public:
  // `store` (which is of this generation), `clock` and `watchdog` outlive it.
  CommunicatorMaker(std::shared_ptr<NcclRuntime> runtime, NcclPlace place, Store& store,
                    Clock& clock, NcclWatchdog& watchdog, absl::Time deadline,
                    CommunicatorMakerOptions options = {},
                    std::optional<ShrinkPlan> shrink = std::nullopt);
  ~CommunicatorMaker();  // stops at the next step; within a fifth of a second

  // nullopt: not yet. Else the communicator, which the watchdog knows already; DEADLINE_EXCEEDED:
  // how many ranks of how many have come; UNAVAILABLE: NCCL's error; what the store says. Once.
  std::optional<absl::StatusOr<std::shared_ptr<NcclCommunicator>>> Take();

 private:
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> Make();
  // The one whose calls may take a thread of NCCL's.
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> MakeOrigin();
  // nullptr: not all ranks could, and all know it.
  absl::StatusOr<std::shared_ptr<NcclCommunicator>> Shrink();
  absl::Status AwaitShrunk(NcclCommunicator& communicator);
  // Leaves how it was here; returns whether all ranks have shrunk theirs.
  absl::StatusOr<bool> AgreeOnShrunk(const absl::Status& here);
  // How many ids there are; the number of that which this rank mints, or -1.
  int32_t IdCount() const;
  int32_t OwnId() const;
  int32_t MinterOf(int32_t number) const { return number * options_.ranks_per_id; }
  absl::StatusOr<std::vector<NcclUniqueId>> Ids();
  absl::StatusOr<NcclUniqueId> AwaitId(int32_t number);
  absl::StatusOr<NcclUniqueId> MintId(int32_t number);
  void ForgetOwnId();
  absl::Status AwaitReady(NcclCommunicator& communicator);
  absl::Status Late(absl::string_view doing);
  // Waits until `until`, or the stop: then true.
  bool StoppedBy(absl::Time until);
  std::string Key(absl::string_view name) const;
  std::string IdKey(int32_t number) const;

  // Constant after construction.
  const std::shared_ptr<NcclRuntime> runtime_;
  const NcclPlace place_;
  const absl::Time started_, deadline_;
  const CommunicatorMakerOptions options_;
  Store& store_;
  Clock& clock_;
  NcclWatchdog& watchdog_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::StatusOr<std::shared_ptr<NcclCommunicator>>> result_ ABSL_GUARDED_BY(mu_);

  // Touched by "nccl-init".
  absl::Time next_report_;
  std::optional<ShrinkPlan> shrink_;

  // Touched by the owner's thread.
  std::thread thread_;
};

}  // namespace coordd
