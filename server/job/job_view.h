// What a job is doing, and what operators see of it. PURE
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordd/v1/admin.pb.h"
#include "server/job/current_generation.h"
#include "server/job/drains.h"
#include "server/job/executed_counts.h"
#include "server/job/job_history.h"
#include "server/job/job_workers.h"
#include "server/job/kv_state.h"
#include "server/job/reforming.h"
#include "server/job/rendezvous_state.h"
#include "server/job/resume_state.h"
#include "server/model/server_options.h"

namespace coordd {

// docs/design/recovery.md has the table: what the parts of each are.
enum class JobStage {
  kEnded,
  kGathering,    // for a first generation, or for one that has nothing from one before
  kNegotiating,  // its generation is intact
  kReporting,    // it is over, and its survivors report what they have of it
  kFollowing,    // they have, and gather for the next
  kWindingUp,    // it is over, and none follows
  kReturning,    // its members come back
};

// What is observed while it is asked: the parts of one job. Changes nothing.
struct JobView {
  const std::string& name;
  const ServerOptions& options;
  const bool started;
  const RendezvousState& rendezvous;
  const Reforming& reforming;
  const JobWorkers& workers;
  const CurrentGeneration* const generation;  // null: there is none
  const ResumeState* const resume;            // null: nobody is waited for
  const KvState& kv;
  const Drains& drains;
  const JobHistory& history;

  bool ended() const { return !started || rendezvous.phase() == RendezvousPhase::kEnded; }
};

JobStage StageOf(const JobView& job);
// In all generations.
ExecutedCounts::Count ExecutedBy(const JobView& job);
void Describe(const JobView& job, absl::Time now, v1::JobState* state);
// INTERNAL: its parts contradict each other. O(everything)
absl::Status CheckConsistency(const JobView& job);

}  // namespace coordd
