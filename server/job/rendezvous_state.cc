#include "server/job/rendezvous_state.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/counted.h"
#include "common/base/duration_text.h"
#include "common/base/status_macros.h"

namespace coordd {

RendezvousState::RendezvousState(const RendezvousOptions& options, Generation last, absl::Time now)
    : options_(options), phase_since_(now), generation_(last), proposed_(last) {}

absl::Status RendezvousState::CheckRoom() const {
  // Members of a broken generation are on their way out and take no room in the next one, unless
  // they will be in it.
  const bool stay = phase_ == RendezvousPhase::kFormed || rejoins_expected_;
  const int32_t taken = waiting() + (stay ? members() : 0);
  if (options_.max_workers > 0 && taken >= options_.max_workers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the job is full: ", Counted(taken, "worker has", "workers have"),
                     " joined and max_workers is ", options_.max_workers,
                     "; another run needs another job name"));
  }
  if (waiting() + members() >= options_.max_workers_of_server) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this coordd takes at most ",
                     Counted(options_.max_workers_of_server, "worker"), " per job"));
  }
  return absl::OkStatus();
}

absl::Status RendezvousState::Join(SessionId session, absl::Time now) {
  COORDD_RETURN_IF_ERROR(CheckRoom());
  COORDD_CHECK(!lease_end_.contains(session));
  COORDD_CHECK(arrival_.try_emplace(session, ++arrivals_).second);
  waiting_[arrivals_] = session;
  if (phase_ == RendezvousPhase::kEnded) Enter(RendezvousPhase::kGathering, now);
  NoteArrival(now);
  return absl::OkStatus();
}

// One that comes and goes, again and again, must not hold up those who wait with it: whoever only
// makes up for one that has gone opens no new window.
void RendezvousState::NoteArrival(absl::Time now) {
  most_waiting_ = std::max(most_waiting_, waiting());
  if (candidates() <= most_candidates_) return;
  most_candidates_ = candidates();
  last_growth_ = now;
}

void RendezvousState::Heard(SessionId session, absl::Time now) {
  const auto it = lease_end_.find(session);
  if (it != lease_end_.end()) it->second = std::max(it->second, now + options_.lease);
}

void RendezvousState::Remove(SessionId session, absl::Time now) {
  if (lease_end_.erase(session) > 0) {
    if (phase_ == RendezvousPhase::kFormed) Enter(RendezvousPhase::kBroken, now);
    if (lease_end_.empty()) MembersGone(now);
    return;
  }
  const auto it = arrival_.find(session);
  if (it == arrival_.end()) return;
  waiting_.erase(it->second);
  arrival_.erase(it);
  rejoined_.erase(session);
  // Nobody is left of those who could go on: it is a job that gathers, as at the start.
  if (rejoined_.empty() && phase_ == RendezvousPhase::kGathering) only_rejoined_ = false;
  if (candidates() < options_.min_workers) most_candidates_ = 0;
  if (phase_ == RendezvousPhase::kGathering && waiting_.empty() && !awaiting_) {
    Enter(RendezvousPhase::kEnded, now);
  }
}

void RendezvousState::Break(absl::Time now) {
  if (phase_ == RendezvousPhase::kFormed) Enter(RendezvousPhase::kBroken, now);
}

void RendezvousState::Rejoin(SessionId session, absl::Time now) {
  COORDD_CHECK(phase_ == RendezvousPhase::kBroken && lease_end_.erase(session) == 1);
  COORDD_CHECK(arrival_.try_emplace(session, ++arrivals_).second);
  waiting_[arrivals_] = session;
  rejoined_.insert(session);
  NoteArrival(now);
  if (lease_end_.empty()) MembersGone(now);
}

void RendezvousState::MembersGone(absl::Time now) {
  first_lease_end_ = absl::InfiniteFuture();
  after_loss_ = true;
  if (rejoined_.empty()) rejoins_expected_ = only_rejoined_ = false;
  Enter(waiting_.empty() ? RendezvousPhase::kEnded : RendezvousPhase::kGathering, now);
}

std::vector<SessionId> RendezvousState::Expired(absl::Time now, int64_t* room) {
  std::vector<SessionId> expired;
  if (now < first_lease_end_) return expired;
  first_lease_end_ = absl::InfiniteFuture();
  for (const auto& [session, end] : lease_end_) {
    if (end <= now && (room == nullptr || *room > 0)) {
      expired.push_back(session);
      if (room != nullptr) --*room;
    } else {
      first_lease_end_ = std::min(first_lease_end_, end);
    }
  }
  return expired;
}

int32_t RendezvousState::candidates() const {
  return only_rejoined_ ? static_cast<int32_t>(rejoined_.size()) : waiting();
}

absl::Time RendezvousState::FormsAt() const {
  if (phase_ != RendezvousPhase::kGathering || awaiting_ || candidates() < options_.min_workers) {
    return absl::InfiniteFuture();
  }
  absl::Time due = last_growth_;
  if (options_.max_workers == 0 || candidates() < options_.max_workers) {
    due = after_loss_ ? std::max(last_growth_, phase_since_) + options_.settling_window_after_loss
                      : last_growth_ + options_.settling_window;
  }
  return std::max(due, retry_at_);
}

std::optional<std::vector<SessionId>> RendezvousState::Propose(absl::Time now) {
  if (!proposal_.empty() || FormsAt() > now) return std::nullopt;
  COORDD_CHECK(lease_end_.empty());
  ++proposed_.value;
  // While members of the last generation were awaited, more may have come than there is room for.
  const auto take = [this](bool rejoined) {
    for (const auto& [order, session] : waiting_) {
      const size_t room = options_.max_workers > 0 ? static_cast<size_t>(options_.max_workers)
                                                   : std::numeric_limits<size_t>::max();
      if (rejoined_.contains(session) == rejoined && proposal_.size() < room)
        proposal_.push_back(session);
    }
  };
  take(/*rejoined=*/true);
  if (!only_rejoined_) take(/*rejoined=*/false);
  return proposal_;
}

std::optional<std::vector<SessionId>> RendezvousState::Confirm(Generation number, absl::Time now) {
  if (proposal_.empty() || number != proposed_) return std::nullopt;
  const std::vector<SessionId> members = std::exchange(proposal_, {});
  retry_at_ = absl::InfinitePast();
  for (SessionId session : members) {
    if (!arrival_.contains(session)) return std::nullopt;
  }
  COORDD_CHECK(phase_ == RendezvousPhase::kGathering && lease_end_.empty());
  generation_ = number;
  for (SessionId session : members) {
    lease_end_[session] = now + options_.lease;
    waiting_.erase(arrival_.at(session));
    arrival_.erase(session);
  }
  first_lease_end_ = now + options_.lease;
  after_loss_ = false;
  rejoins_expected_ = only_rejoined_ = false;
  rejoined_.clear();
  most_candidates_ = 0;
  Enter(RendezvousPhase::kFormed, now);
  return members;
}

std::optional<std::vector<SessionId>> RendezvousState::TryForm(absl::Time now) {
  if (!Propose(now).has_value()) return std::nullopt;
  return Confirm(proposed_, now);
}

void RendezvousState::Withdraw(Generation number, absl::Time retry_at) {
  if (proposal_.empty() || number != proposed_) return;
  proposal_.clear();
  retry_at_ = retry_at;
}

void RendezvousState::Suspend(absl::Time now) {
  const Generation proposed = proposed_;
  *this = RendezvousState(options_, generation_, now);
  proposed_ = proposed;
  Await();
}

void RendezvousState::Resume(const std::vector<SessionId>& members, absl::Time now) {
  COORDD_CHECK(awaiting_ && lease_end_.empty() && !members.empty());
  awaiting_ = false;
  proposal_.clear();
  for (SessionId session : members) lease_end_[session] = now + options_.lease;
  first_lease_end_ = now + options_.lease;
  Enter(RendezvousPhase::kFormed, now);
}

void RendezvousState::StopAwaiting(absl::Time now) {
  COORDD_CHECK(awaiting_ && lease_end_.empty());
  awaiting_ = false;
  after_loss_ = true;
  Enter(waiting_.empty() ? RendezvousPhase::kEnded : RendezvousPhase::kGathering, now);
}

absl::Time RendezvousState::NextDeadline() const {
  const absl::Time forms_at = proposal_.empty() ? FormsAt() : absl::InfiniteFuture();
  return std::min(forms_at, first_lease_end_);
}

void RendezvousState::Forgive(absl::Duration gap) {
  for (auto& [session, end] : lease_end_) end += gap;
  first_lease_end_ += gap;
}

std::string RendezvousState::Reason(absl::Time now) const {
  switch (phase_) {
    case RendezvousPhase::kFormed:
      return absl::StrCat("generation ", ToInt(generation_), " with ", members(),
                          members() == 1 ? " worker" : " workers", " is running");
    case RendezvousPhase::kBroken:
      return absl::StrCat("generation ", ToInt(generation_), " is over, ", members(),
                          " of its workers have not left yet");
    case RendezvousPhase::kEnded:
      return "no worker is left";
    case RendezvousPhase::kGathering:
      break;
  }
  if (awaiting_) {
    return absl::StrCat("the members of generation ", ToInt(generation_),
                        " may come back to it, since coordd was started again");
  }
  if (candidates() < options_.min_workers) {
    const std::string count = absl::StrCat(candidates(), " of at least ", options_.min_workers);
    if (only_rejoined_) return absl::StrCat(count, " workers are left");
    const int32_t gone = most_waiting_ - waiting();
    return absl::StrCat(
        count, " workers have joined",
        gone > 0 ? absl::StrCat(", ", gone, gone == 1 ? " has" : " have", " gone again") : "");
  }
  const std::string joined =
      absl::StrCat(waiting(), waiting() == 1 ? " worker has" : " workers have", " joined");
  if (!proposal_.empty()) {
    return absl::StrCat(joined, ", generation ", ToInt(proposed_), " is being stored");
  }
  if (FormsAt() <= now || FormsAt() == absl::InfiniteFuture()) return joined;
  return absl::StrCat(joined, ", others may for another ", DurationText(FormsAt() - now));
}

absl::Status RendezvousState::CheckConsistency() const {
  const bool has_members = !lease_end_.empty();
  const bool should = phase_ == RendezvousPhase::kFormed || phase_ == RendezvousPhase::kBroken;
  if (has_members != should) {
    return absl::InternalError(
        absl::StrCat("phase ", static_cast<int>(phase_), " with ", members(), " members"));
  }
  if (phase_ == RendezvousPhase::kGathering && waiting_.empty() && !awaiting_ &&
      last_growth_ != absl::InfinitePast()) {
    return absl::InternalError("gathering though nobody waits");
  }
  if (phase_ == RendezvousPhase::kEnded && !waiting_.empty()) {
    return absl::InternalError("ended though workers wait");
  }
  if (proposed_ < generation_) return absl::InternalError("a generation formed unproposed");
  if (waiting_.size() != arrival_.size()) {
    return absl::InternalError("the two indices of waiting workers differ");
  }
  if (options_.max_workers > 0 && waiting() > options_.max_workers) {
    return absl::InternalError(
        absl::StrCat(waiting(), " workers wait for ", options_.max_workers, " places"));
  }
  for (const auto& [session, end] : lease_end_) {
    if (end < first_lease_end_) return absl::InternalError("a lease ends before the first one");
  }
  return absl::OkStatus();
}

void RendezvousState::Enter(RendezvousPhase phase, absl::Time now) {
  phase_ = phase;
  phase_since_ = now;
  most_waiting_ = waiting();
}

}  // namespace coordd
