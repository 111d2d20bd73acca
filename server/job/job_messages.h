// What a job says to its workers, and to the log.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/topology.h"
#include "common/protocol/types.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/generation_state.h"
#include "server/generation/resume_merge.h"
#include "server/job/drains.h"
#include "server/job/found_sets.h"
#include "server/job/job_workers.h"
#include "server/job/rendezvous_state.h"
#include "server/model/durability.h"
#include "server/model/effects.h"
#include "server/model/server_options.h"
#include "server/model/turn.h"

namespace coordd {

// PURE. Not thread-safe. Each message has the epoch of this coordd and the generation that it is
// about, each event the job's name and its generation.
class JobMessages {
 public:
  // All but the name outlive it. `rendezvous`: of the job, whichever it has.
  JobMessages(std::string name, const ServerOptions& options, const Durability& durability,
              Epoch epoch, const RendezvousState& rendezvous)
      : name_(std::move(name)),
        options_(options),
        durability_(durability),
        epoch_(epoch),
        rendezvous_(rendezvous) {}
  JobMessages(const JobMessages&) = delete;
  JobMessages& operator=(const JobMessages&) = delete;

  const std::string& name() const { return name_; }
  Epoch epoch() const { return epoch_; }

  std::shared_ptr<v1::CoordinatorMessage> New(Generation generation) const;
  void Emit(Event::Kind kind, absl::string_view text, Effects& effects,
            v1::DepartureCause cause = v1::DEPARTURE_CAUSE_UNSPECIFIED) const;
  // `sentence`: who it was, and departure.detail.
  void EmitDeparture(const v1::Departure& departure, absl::string_view sentence,
                     Effects& effects) const;

  // The generation `number` of these members: it does what all of them can, and what is pending in
  // it takes of `budget`.
  GenerationIdentity IdentityOf(Generation number, const std::vector<SessionId>& members,
                                const JobWorkers& workers,
                                std::shared_ptr<ByteBudget> budget) const;
  // A member's place in the job's generation, of which `record` is. What was `found` is told behind
  // it, to all at once.
  void Membership(SessionId to, const Place& place, const Topology& topology,
                  const v1::JobRecord& record, const FoundSets& found, int64_t slots,
                  Effects& effects) const;
  // To who knows all by now that others have heard. `state`: restored.
  void Resumed(SessionId to, const ResumedGeneration& resumed, const GenerationState& state,
               Effects& effects) const;

  // To be completed by who knows the lags.
  std::shared_ptr<v1::CoordinatorMessage> LeaseAck(Generation generation,
                                                   const v1::Heartbeat& heartbeat,
                                                   absl::Time now) const;
  // `reason`: why there is no generation yet.
  void Waiting(std::vector<SessionId> to, const std::string& reason, Effects& effects) const;
  void Newcomers(std::vector<SessionId> to, Effects& effects) const;
  void AskToLeave(SessionId to, Generation generation, const Drain& drain, const Turn& turn) const;
  void MayStay(SessionId to, Generation generation, Effects& effects) const;
  // To all. `returns`: and they may come back.
  void Shutdown(const JobWorkers& workers, const StopRequested& stop, bool returns,
                Effects& effects) const;

 private:
  const std::string name_;
  const ServerOptions& options_;
  const Durability& durability_;
  const Epoch epoch_;
  const RendezvousState& rendezvous_;
};

}  // namespace coordd
