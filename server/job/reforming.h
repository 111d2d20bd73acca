// Whether a generation that is over is followed by another one of those who are left, and how long
// coordd waits for what in between.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/protocol/types.h"

namespace coordd {

// How long a failure that a member reports waits for the end of the process that caused it. The
// others see a dead process in their data plane as soon as coordd does, and the words of one who
// has only lost a peer are worth less than the departure of that peer.
inline constexpr absl::Duration kBlameWindow = absl::Milliseconds(50);
// How long it waits for what others say when a member hears nothing more from another one, which no
// end of a process explains: they notice at almost the same time. Below the time after which
// workers end the generation for themselves (1 s).
inline constexpr absl::Duration kSilenceWindow = absl::Milliseconds(500);
// Generations in a row that nobody's departure has ended. What fails without one fails again; each
// of them makes every program begin anew. One whose members had to come back to coordd meanwhile
// does not count.
inline constexpr int32_t kMaxFruitlessGenerations = 3;
// One that has lived for as long does not count.
inline constexpr absl::Duration kFruitfulLife = absl::Minutes(10);

struct ReformingOptions {
  OnFailure on_failure = OnFailure::kEnd;
  absl::Duration report_window = absl::Seconds(10);  // for a member that is there to report
  absl::Duration timeout = absl::Minutes(10);        // for min_workers to be there again
  int32_t reset_limit = 0;                           // of generations that follow another; 0: none
};

//   alive --Failed--> blaming --Verdict, or Broken--> open --all have reported--> gathering
//   --Formed--> alive
//
// PURE; `now` must not decrease. Not thread-safe: one owner.
class Reforming {
 public:
  explicit Reforming(const ReformingOptions& options = {}) : options_(options) {}

  OnFailure on_failure() const { return options_.on_failure; }
  bool wanted() const { return options_.on_failure != OnFailure::kEnd; }

  // The first worker of a job that begins: what it is from now on. `same_run`: it goes on with what
  // has ended, as its token tells.
  void Begin(const ReformingOptions& options, bool same_run);

  // A member says that a collective has failed; `silent`: since it hears nothing more from another
  // one. REQUIRES: the generation is intact.
  void Failed(const std::string& reason, bool silent, Rank witness, absl::Time now);
  // A departure is about to: nobody else's word is needed.
  void Explained() { blame_until_ = absl::InfiniteFuture(); }
  // This member says goodbye: that explains nothing of what it has said before.
  void SaysGoodbye(Rank member, absl::Time now) {
    const bool blaming = blame_until_ != absl::InfiniteFuture();
    if (blaming && witness_ == member) blame_until_ = std::min(blame_until_, now);
  }
  // No departure has explained a failure: the generation has to end. Its reason.
  std::optional<std::string> Verdict(absl::Time now) const;

  // The generation is over; whether another one follows. `lost`: a member has gone without a
  // goodbye, or the members have asked for the end; `left`: one has said goodbye, which is the end
  // of the job for all.
  bool Broken(const std::string& reason, bool lost, bool left, absl::Time now);
  void Lost() { fruitless_ = 0; }  // another member, after that
  // All survivors have reported: the next generation can form.
  void Gathering(absl::Time now);
  void Formed(absl::Time now);
  // No further generation forms, and the job is over: `why` completes "none follows: ".
  void GiveUp(const std::string& why);
  // The members of the generation come back: who has failed fails again, and if it was over, it
  // will be Broken again.
  void Suspended();
  // Nobody is left.
  void Ended();

  bool open() const { return open_; }  // from Broken to Formed
  bool limit_reached() const { return options_.reset_limit > 0 && resets_ >= options_.reset_limit; }
  const std::string& reason() const { return reason_; }  // of Broken
  // Why the generation that is over is the last one although its members were to go on without
  // those who are gone; empty: it is not, or they had said goodbye. Until the job begins anew.
  const std::string& none_follows() const { return none_follows_; }
  // The generation before the next one was to go on: whoever has none of its members begins from
  // nothing, and says so.
  bool unfinished() const { return unfinished_; }
  void StateIsLost(const std::string& sentence) { state_lost_ = sentence; }
  const std::string& state_lost() const { return state_lost_; }  // the last; empty: it never was
  // Whether survivors that have not reported by now are not waited for any more.
  bool ReportsAreOverdue(absl::Time now) const { return open_ && now >= report_by_; }
  // Nor is min_workers.
  bool TimedOut(absl::Time now) const { return open_ && now >= form_by_; }
  absl::Time NextDeadline() const;
  void Forgive(absl::Duration gap);

 private:
  void Close();

  ReformingOptions options_;
  std::string blame_;        // why the generation has to end at blame_until_
  Rank witness_ = Rank{-1};  // who has said so
  absl::Time blame_until_ = absl::InfiniteFuture();
  bool silence_ = false;  // is among what was said
  bool open_ = false;
  std::string reason_;
  absl::Time report_by_ = absl::InfiniteFuture();
  absl::Time form_by_ = absl::InfiniteFuture();
  int32_t fruitless_ = 0;
  bool suspended_ = false;  // since Formed, before it was over
  bool counted_ = false;    // Broken has added to fruitless_
  int32_t resets_ = 0;      // generations that have followed another
  absl::Time formed_at_ = absl::InfinitePast();
  std::string none_follows_, state_lost_;
  bool unfinished_ = false;
};

}  // namespace coordd
