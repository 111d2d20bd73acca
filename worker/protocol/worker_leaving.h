// How a worker leaves its job: who wants it to, and how far its goodbye is. PURE
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/goodbye.h"
#include "worker/protocol/turn.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// Not thread-safe: a part of WorkerState, for its life.
//
// Invariant: the phases come in their order, except that a goodbye that nobody may have heard is
// said again.
class WorkerLeaving {
 public:
  enum class Phase {
    kStays,
    kLeaves,       // takes nothing new, and finishes what is planned
    kSaidGoodbye,  // or needs to say none
    kStopped,      // Stopped was given: nothing will follow
  };

  Phase phase() const { return phase_; }
  bool leaves() const { return phase_ != Phase::kStays; }
  bool said_goodbye() const { return phase_ >= Phase::kSaidGoodbye; }
  bool stopped() const { return phase_ == Phase::kStopped; }
  // Goes on to this phase, if it is not there yet.
  void Advance(Phase phase) { phase_ = phase > phase_ ? phase : phase_; }
  // The connection is lost: coordd may not have heard the goodbye.
  void RepeatGoodbye() {
    if (phase_ == Phase::kSaidGoodbye) phase_ = Phase::kLeaves;
  }

  Goodbye& goodbye() { return goodbye_; }
  const Goodbye& goodbye() const { return goodbye_; }
  // When the goodbye is to be said, if all that was to be before is finished.
  absl::Time NextDeadline() const {
    return phase_ == Phase::kLeaves ? goodbye_.next_deadline() : absl::InfiniteFuture();
  }
  // `lives`: the generation did until now.
  v1::Leave GoodbyeMessage(bool lives) const;

  // --- somebody wants this rank to leave ---
  // The process itself. Until coordd has said when, it knows best.
  void AskDrain(DrainAsked asked, const WorkerTurn& turn);
  void OnDrainNotice(const v1::DrainNotice& notice, const WorkerTurn& turn);
  // There is a session again: coordd tells whom it knows to leave; its word may have changed.
  void ForgetNotice(const WorkerTurn& turn);
  // What asks coordd to let this rank go, for each coordd that may not have heard it; none: nothing
  // is asked for.
  std::optional<v1::WorkerMessage> DrainRequest(absl::Time now) const;

 private:
  void SetDrain(absl::Time until, const WorkerTurn& turn);

  Phase phase_ = Phase::kStays;
  Goodbye goodbye_;                                  // that is to be said, when leaving
  std::optional<DrainAsked> drain_asked_;            // by the program's process
  absl::Time drain_until_ = absl::InfiniteFuture();  // infinite: this rank may stay
};

}  // namespace coordd
