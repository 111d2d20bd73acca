// What the survivors of a generation bring into the next one. docs/design/recovery.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/protocol/topology.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/sets_left.h"
#include "server/job/job_workers.h"
#include "server/job/reforming.h"
#include "server/job/repair_plan.h"
#include "server/model/turn.h"

namespace coordd {

// PURE. Not thread-safe. Whoever asks twice about the same workers gets the same: what is stored of
// a generation before it is announced is what its members hear.
class Survivors {
 public:
  // Both outlive it; `reforming` says whether anything is to be inherited.
  Survivors(const JobWorkers& workers, const Reforming& reforming)
      : workers_(workers), reforming_(reforming) {}
  Survivors(const Survivors&) = delete;
  Survivors& operator=(const Survivors&) = delete;

  // Takes the next part of what a survivor says of a generation of `size` ranks. A status breaks
  // the protocol.
  static absl::Status AddReport(int32_t size, v1::RecoveryReport report, JobWorker& survivor);
  // The sets of the generation that is over are known here, and not only to its survivors.
  void KeepSets(SetsLeft sets) { known_ = std::move(sets); }
  // Once nobody looks at them any more.
  void ForgetSets(const Turn& turn);

  // The workers, in the order in which they arrived, as ranks; who had one keeps it where it can.
  // Without levels where one of them does not know what to do with them.
  Topology TopologyOf(const std::vector<SessionId>& sessions) const;
  bool Any(const std::vector<SessionId>& sessions) const;  // of them was in the one before
  // INTERNAL: their reports contradict each other. Programs that have been told different things
  // cannot go on together. OK where none is to repeat anything.
  absl::Status Check(const std::vector<SessionId>& sessions) const;
  // What is to be repeated. REQUIRES: Check.
  std::vector<v1::LaneRepair> Repairs(const std::vector<SessionId>& sessions) const;
  // What of process sets the next generation finds, with the ranks that they have had; and of each
  // of these the rank that it has there, by whose sessions they are. -1: it has none.
  SetsLeft Left(const std::vector<SessionId>& sessions) const;
  std::vector<Rank> Moved(const std::vector<SessionId>& by_rank) const;

 private:
  bool repeats() const {
    return reforming_.on_failure() == OnFailure::kContinue && reforming_.open();
  }
  std::vector<SurvivorReport> ReportsOf(const std::vector<SessionId>& sessions) const;

  const JobWorkers& workers_;
  const Reforming& reforming_;
  std::optional<SetsLeft> known_;  // until the next generation has formed
};

// For a generation that has none of them, though the one before was to go on. `batches`: that were
// executed before it; 0: nobody has counted them.
std::string LostStateText(Generation generation, int64_t batches);

}  // namespace coordd
