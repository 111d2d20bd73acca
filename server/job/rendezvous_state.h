// When the workers of one job become a generation, and when a generation is over.
//
//   gathering --min_workers and window closed--> formed --a member is lost or leaves--> broken
//       ^                                                                                 |
//       +------------- workers wait <---- its last member is gone -----> nobody: ended ---+
//
// A generation forms in two steps, so that it can be stored before anybody hears of it: Propose
// takes its number and says who would be in it, Confirm makes it so if they are all still there. In
// between the job goes on gathering. A number that was proposed is never used again.
//
// Knows sessions and times only; who the workers are is JobState's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"

namespace coordd {

struct RendezvousOptions {
  int32_t min_workers = 1;
  int32_t max_workers = 0;  // 0: no limit of the job's own
  int32_t max_workers_of_server = 131072;
  absl::Duration settling_window = absl::Seconds(1);
  absl::Duration settling_window_after_loss = absl::Milliseconds(20);
  absl::Duration lease = absl::Seconds(10);
};

enum class RendezvousPhase { kGathering, kFormed, kBroken, kEnded };

// PURE; `now` must not decrease. Not thread-safe: one owner.
class RendezvousState {
 public:
  // Generations are numbered from `last` + 1.
  RendezvousState(const RendezvousOptions& options, Generation last, absl::Time now);

  // The session waits for the next generation. RESOURCE_EXHAUSTED: the job is full.
  // REQUIRES: `session` is new.
  absl::Status Join(SessionId session, absl::Time now);
  absl::Status CheckRoom() const;  // what Join would say

  // Renews the lease of a member. Whoever waits has none: the stream's end is what ends it.
  void Heard(SessionId session, absl::Time now);
  // The session is gone, for whatever reason. A formed generation that loses a member is broken.
  void Remove(SessionId session, absl::Time now);
  // The generation is over though its members are still there.
  void Break(absl::Time now);
  // The members of the broken generation will Rejoin: they keep their room. `only`: and nobody else
  // will be in the next one. Nothing, if the last one is gone: it is a job that gathers.
  void ExpectRejoins(bool only) {
    if (lease_end_.empty()) return;
    rejoins_expected_ = true;
    only_rejoined_ = only;
  }
  // A member of the broken generation waits for the next one; its lease ends.
  void Rejoin(SessionId session, absl::Time now);

  // Members whose lease has run out; the caller removes them. Cheap until the first could have. Not
  // more than there is `room` for, which they take; null: all.
  std::vector<SessionId> Expired(absl::Time now, int64_t* room = nullptr);
  // The members of the next generation in order of arrival, if it is due and none is proposed; its
  // number is proposed().
  std::optional<std::vector<SessionId>> Propose(absl::Time now);
  // The proposal `number` may be announced. Nothing, when it is another one by now or when a worker
  // of it has gone: then the next Propose takes another number. Who came later waits.
  std::optional<std::vector<SessionId>> Confirm(Generation number, absl::Time now);
  // Both at once, where nothing has to happen in between.
  std::optional<std::vector<SessionId>> TryForm(absl::Time now);

  // The members of the last generation may come back to it: until one of the other two is called,
  // nothing forms, and nobody's going ends the job. REQUIRES: gathering, and nobody waits.
  void Await() { awaiting_ = true; }
  // Everybody is gone, and the members of the last generation may come back to it. No number is
  // used again, also that of an open proposal.
  void Suspend(absl::Time now);
  // The members have come back: the generation has formed again, of these, who do not wait.
  void Resume(const std::vector<SessionId>& members, absl::Time now);
  // The members have not come back: whoever waits is all there is.
  void StopAwaiting(absl::Time now);
  // The proposed generation may not be announced. The next one is due at `retry_at` at the
  // earliest.
  void Withdraw(Generation number, absl::Time retry_at);
  absl::Time NextDeadline() const;  // InfiniteFuture: nothing is due until something comes in

  // coordd was not running for `gap`: nobody could renew, so every lease is that much longer.
  void Forgive(absl::Duration gap);

  RendezvousPhase phase() const { return phase_; }
  absl::Time phase_since() const { return phase_since_; }
  Generation generation() const { return generation_; }  // the last that formed; 0: none
  // The highest number that was proposed or formed. A new RendezvousState starts behind it.
  Generation proposed() const { return proposed_; }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t members() const { return static_cast<int32_t>(lease_end_.size()); }
  const RendezvousOptions& options() const { return options_; }
  // Why there is no generation yet, e.g. "2 of at least 4 workers have joined, 1 has gone again".
  std::string Reason(absl::Time now) const;

  absl::Status CheckConsistency() const;  // its invariants

 private:
  // How many of the waiting would be in the next generation.
  int32_t candidates() const;
  absl::Time FormsAt() const;  // InfiniteFuture: not before something else happens
  void NoteArrival(absl::Time now);
  void Enter(RendezvousPhase phase, absl::Time now);
  void MembersGone(absl::Time now);

  RendezvousOptions options_;
  RendezvousPhase phase_ = RendezvousPhase::kGathering;
  absl::Time phase_since_;
  Generation generation_;
  Generation proposed_;              // at least generation_
  std::vector<SessionId> proposal_;  // empty: none is open
  absl::Time retry_at_ = absl::InfinitePast();
  bool awaiting_ = false;
  int64_t arrivals_ = 0;
  std::map<int64_t, SessionId> waiting_;  // in order of arrival
  std::map<SessionId, int64_t> arrival_;  // key of each waiting session in waiting_
  // When there were more candidates than ever since there were less than min_workers; and how many.
  absl::Time last_growth_ = absl::InfinitePast();
  int32_t most_candidates_ = 0;
  int32_t most_waiting_ = 0;                   // that there have been since the phase began
  bool after_loss_ = false;                    // this gathering follows a broken generation
  bool rejoins_expected_ = false;              // until the next generation
  bool only_rejoined_ = false;                 // likewise
  std::set<SessionId> rejoined_;               // of the waiting
  std::map<SessionId, absl::Time> lease_end_;  // of the members of the current generation
  // No lease ends before this: renewals only move ends back, so the members need to be looked at
  // only when this has passed.
  absl::Time first_lease_end_ = absl::InfiniteFuture();
};

}  // namespace coordd
