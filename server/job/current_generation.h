// The generation that a job has, and how it has ended.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/generation_state.h"
#include "server/job/blame.h"
#include "server/job/executed_counts.h"
#include "server/job/job_history.h"
#include "server/job/job_workers.h"
#include "server/job/trace_state.h"
#include "server/model/server_options.h"
#include "server/model/turn.h"

namespace coordd {

// How a generation has ended, so far: the later ones are worse.
enum class Damage { kNone, kLeft, kAsked, kCollectiveFailed, kLost };

// PURE. Not thread-safe: one owner, who has one for each generation and replaces it whole: nothing
// of one generation is left in the next. From its first Membership until its last member is gone.
//
// Its damage only grows.
class CurrentGeneration {
 public:
  // `knows_sets`: all of its process sets are known here; otherwise its survivors say them.
  CurrentGeneration(GenerationState::Identity identity, const ServerOptions& options,
                    std::vector<SessionId> by_rank, bool knows_sets)
      : CurrentGeneration(
            std::make_shared<GenerationState>(std::move(identity), options, std::move(by_rank)),
            knows_sets) {}
  CurrentGeneration(std::shared_ptr<GenerationState> state, bool knows_sets)
      : state_(std::move(state)), knows_sets_(knows_sets) {}

  GenerationState& state() { return *state_; }
  const GenerationState& state() const { return *state_; }
  // GenerationState::End, once. What was pending is freed in parts.
  void End(const Turn& turn);
  // So is all of it. Nothing else is called then.
  void Bury(const Turn& turn);
  ExecutedCounts::Count planned() const {
    return {state_->batches_planned(), state_->bytes_planned()};
  }
  bool knows_sets() const { return knows_sets_; }
  // The rank of the session that has it. REQUIRES: it is one of its ranks.
  SessionId session_of(Rank rank) const { return state_->session_of(rank); }
  // Its ranks, as who traces them has to know them. REQUIRES: all are in.
  std::vector<TraceState::Member> Traced(const JobWorkers& workers) const;
  bool HasRank(int32_t rank) const { return rank >= 0 && rank < state_->size(); }

  // What its members say of what it negotiates; nothing happens any more once it is over. A status
  // breaks the protocol: wrong is wrong then, too.
  absl::Status OnMessage(Rank rank, const v1::WorkerMessage& message, const Turn& turn);

  Damage damage() const { return damage_; }
  bool intact() const { return damage_ == Damage::kNone; }
  const std::string& reason() const { return reason_; }  // empty while it is intact
  // False, and nothing has happened: that, or worse, had happened before.
  bool Worsen(Damage damage);
  void Explain(std::string reason) { reason_ = std::move(reason); }

  void AddDeparted(const v1::Departure& departure) { AddDeparture(departed_, departure); }
  bool HasLeft(Rank rank) const;  // by a goodbye
  // What its members hear of its end. `reforms`: another one is to follow.
  v1::Abort AbortOf(bool reforms) const;

  Blame& blame() { return blame_; }

  // Members that are left of it when none follows, by worker id: a process that starts again under
  // the id of one takes its place.
  void KeepOld(const std::string& worker_id, SessionId session) { old_[worker_id] = session; }
  void DropOld(const std::string& worker_id, SessionId session);
  std::optional<SessionId> OldOf(const std::string& worker_id) const;

 private:
  std::shared_ptr<GenerationState> state_;
  const bool knows_sets_;
  Damage damage_ = Damage::kNone;
  std::string reason_;
  std::deque<v1::Departure> departed_;
  Blame blame_;
  std::map<std::string, SessionId> old_;
};

}  // namespace coordd
