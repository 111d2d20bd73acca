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
#include "server/job/job_workers.h"
#include "server/job/reforming.h"
#include "server/job/repair_plan.h"

namespace coordd {

// What a generation has from the one before.
struct Inheritance {
  std::vector<v1::LaneRepair> repairs;
  v1::ProcessSets process_sets;
  bool has_sets() const;
};

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
  static absl::Status AddReport(int32_t size, v1::RecoveryReport report, v1::RecoveryReport& whole);
  // The sets of the generation that is over are known here, and not only to its survivors.
  void KeepSets(v1::ProcessSets sets) { left_sets_ = std::move(sets); }
  void ForgetSets() { left_sets_.reset(); }

  // The workers, in the order in which they arrived, as ranks; who had one keeps it where it can.
  // Without levels where one of them does not know what to do with them.
  Topology TopologyOf(const std::vector<SessionId>& sessions) const;
  bool Any(const std::vector<SessionId>& sessions) const;  // of them was in the one before
  // INTERNAL: their reports contradict each other. Programs that have been told different things
  // cannot go on together. OK where none is to repeat anything.
  absl::Status Check(const std::vector<SessionId>& sessions) const;
  // REQUIRES: Check.
  Inheritance Of(const std::vector<SessionId>& sessions, const Topology& topology) const;

 private:
  bool repeats() const {
    return reforming_.on_failure() == OnFailure::kContinue && reforming_.open();
  }
  std::vector<SurvivorReport> ReportsOf(const std::vector<SessionId>& sessions) const;
  std::vector<v1::LaneRepair> Repairs(const std::vector<SessionId>& sessions) const;
  v1::ProcessSets ReportedSets(const std::vector<SessionId>& sessions) const;
  v1::ProcessSets NextSets(const std::vector<SessionId>& sessions, const Topology& topology) const;

  const JobWorkers& workers_;
  const Reforming& reforming_;
  std::optional<v1::ProcessSets> left_sets_;  // until the next generation has formed
};

// For a generation that has none of them, though the one before was to go on. `batches`: that were
// executed before it; 0: nobody has counted them.
std::string LostStateText(Generation generation, int64_t batches);

}  // namespace coordd
