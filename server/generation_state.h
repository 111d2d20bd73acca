// What one generation of a job negotiates: readiness, plans in one order, failures, stalls. It dies
// with its generation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/types.h"
#include "coordd/v1/session.pb.h"
#include "server/effects.h"
#include "server/readiness_table.h"
#include "server/server_options.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe.
class GenerationState {
 public:
  struct Identity {
    std::string job;
    Epoch epoch;
    Generation generation;
  };
  // `by_rank`: the session of each rank. `options` outlives it.
  GenerationState(Identity identity, const ServerOptions& options, std::vector<SessionId> by_rank);

  // REQUIRES of each: the message is within its bounds (validate_message.h).
  void OnTensorsReady(Rank rank, const v1::TensorsReady& ready, absl::Time now, Effects& effects);
  void OnTensorsWithdrawn(Rank rank, const v1::TensorsWithdrawn& withdrawn, Effects& effects);

  // Plans what is ready and tells of stalls. Planning waits for Tick so that everything that came
  // in during one turn of the coordinator is fused together.
  void Tick(absl::Time now, Effects& effects);
  absl::Time NextDeadline() const;  // InfinitePast: something is ready to be planned

  // A member is gone: nothing more is negotiated. What was pending is forgotten.
  void End(Effects& effects);

  void Forgive(absl::Duration gap) { table_.Forgive(gap); }

  const Identity& identity() const { return identity_; }
  int32_t size() const { return static_cast<int32_t>(by_rank_.size()); }
  SessionId session_of(Rank rank) const { return by_rank_[static_cast<size_t>(rank.value)]; }
  const ReadinessTable& table() const { return table_; }
  int64_t batches_planned() const { return sequence_; }
  int64_t tensors_planned() const { return tensors_planned_; }
  int64_t bytes_planned() const { return bytes_planned_; }

 private:
  std::shared_ptr<v1::CoordinatorMessage> NewMessage() const;
  void Plan(absl::Time now, Effects& effects);
  void WatchStalls(absl::Time now, Effects& effects);
  void DeliverFailures(const std::vector<FailedTensor>& failed, Effects& effects) const;
  void NoteFailures(const std::vector<FailedTensor>& failed, Effects& effects) const;
  // After anything that may have ended stalls.
  void NoteStallsEnded(Effects& effects);
  void Emit(Event::Kind kind, std::string text, int64_t tensors, absl::StatusCode code,
            Effects& effects) const;

  const Identity identity_;
  const ServerOptions& options_;
  const std::vector<SessionId> by_rank_;
  ReadinessTable table_;
  int64_t sequence_ = 0;  // of the last batch planned
  int64_t tensors_planned_ = 0;
  int64_t bytes_planned_ = 0;
  int64_t stalls_told_ = 0;  // stalled tensors for which no end has been told
  bool ended_ = false;
};

}  // namespace coordd
