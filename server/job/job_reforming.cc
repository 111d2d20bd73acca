// How the survivors of a generation become the next one.
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "server/job/job_state.h"
#include "server/job/repair_plan.h"

namespace coordd {
// Whoever waits is in the next generation, if there is room for it and it is there by then.
void JobState::OnChangeMembers(const Worker& worker, const Turn& turn) {
  if (!reforming_.wanted()) return;  // the member is told what it can do, and that is not it
  const bool was_intact = damage() == Damage::kNone;
  EndGeneration(
      Damage::kAsked,
      absl::StrCat(
          Who(worker), " asked for a change of members, ", rendezvous_.waiting(),
          rendezvous_.waiting() == 1 ? " worker waits" : " workers wait",
          drains_.size() == 0 ? "" : absl::StrCat(", ", drains_.size(), " asked to leave")),
      turn);
  // All are at the same point, and have nothing to execute again.
  if (was_intact && reforming_.open()) rendezvous_.ExpectRejoins(/*only=*/false);
}

// From now on it waits as one that has just joined does; its place in the old generation is its
// claim on one in the next.
absl::Status JobState::OnRecoveryReport(SessionId session, Worker& worker,
                                        v1::RecoveryReport report, const Turn& turn) {
  const bool more = report.process_sets().more();
  COORDD_RETURN_IF_ERROR(AddReport(generation_->state(), std::move(report), worker.report));
  if (more) return absl::OkStatus();
  worker.previous = worker.generation;
  worker.previous_rank = ToInt(worker.place.rank);
  worker.generation = Generation{0};
  rendezvous_.Rejoin(session, turn.now);
  news_.Changed();
  NoteGone(turn);
  CheckReports(turn);
  return absl::OkStatus();
}

std::vector<v1::LaneRepair> JobState::Repairs(const std::vector<SessionId>& sessions) const {
  std::vector<v1::LaneRepair> repairs;
  if (reforming_.on_failure() != OnFailure::kContinue || !reforming_.open()) return repairs;
  const auto plan = PlanRepair(ReportsOf(sessions));
  COORDD_CHECK(plan.ok());  // CheckReports has seen them all
  for (const auto& [lane, completed] : *plan) {
    v1::LaneRepair& repair = repairs.emplace_back();
    repair.set_lane(ToInt(lane));
    repair.set_completed(completed);
  }
  return repairs;
}

std::vector<SurvivorReport> JobState::ReportsOf(const std::vector<SessionId>& sessions) const {
  std::vector<SurvivorReport> reports;
  for (SessionId session : sessions) {
    const Worker& worker = workers_.at(session);
    if (worker.previous_rank >= 0) reports.push_back({worker.previous_rank, &worker.report});
  }
  return reports;
}

// Programs that have been told different things cannot go on together.
void JobState::CheckReports(const Turn& turn) {
  const bool all = reforming_.open() && rendezvous_.members() == 0;
  if (reforming_.on_failure() != OnFailure::kContinue || !all) return;
  std::vector<SessionId> survivors;
  for (const auto& [session, worker] : workers_) survivors.push_back(session);
  const auto plan = PlanRepair(ReportsOf(survivors));
  if (plan.ok()) return;
  Emit(Event::Kind::kProtocolError, plan.status().message(), turn.effects);
  GiveUp(plan.status(), turn);
}

TopologyMember JobState::MemberOf(SessionId session) const {
  const Worker& worker = workers_.at(session);
  TopologyMember member = ToTopologyMember(worker.join);
  member.previous_rank = worker.previous_rank;
  return member;
}

void JobState::WatchReforming(const Turn& turn) {
  if (const auto why = reforming_.Verdict(turn.now)) Judge(*why, turn);
  if (reforming_.ReportsAreOverdue(turn.now)) ExpelSilent(turn);
  if (reforming_.TimedOut(turn.now)) GiveUpReforming(turn);
}

// Members that live and do not reach each other would fail together again: the others go on without
// as few of them as possible. Where none go on, all of them are only told.
void JobState::Judge(const std::string& why, const Turn& turn) {
  const Blame blame = std::exchange(generation_->blame(), Blame());
  if (blame.empty() || !reforming_.wanted())
    return EndGeneration(Damage::kCollectiveFailed, why, turn);
  std::set<Rank> marked;
  for (int32_t rank = 0; rank < generation_->state().size(); ++rank) {
    const Worker* const worker = workers_.Find(generation_->session_of(Rank{rank}));
    const bool lately = worker != nullptr && turn.now - worker->blamed_at < kFruitfulLife;
    if (lately) marked.insert(Rank{rank});
  }
  std::vector<std::pair<SessionId, std::string>> evicted;
  for (Rank culprit : blame.Culprits(marked))
    evicted.emplace_back(generation_->state().session_of(culprit),
                         BlameText(blame.LinkOf(culprit)));
  for (const BlamedLink& link : blame.links())
    for (Rank end : {link.witness, link.suspect})
      workers_.at(generation_->state().session_of(end)).blamed_at = turn.now;
  for (const auto& [session, text] : evicted) {
    if (Has(session)) Evict(session, "was evicted: " + text, turn);
  }
}

std::string JobState::BlameText(const BlamedLink& link) const {
  const auto who = [this](Rank rank) {
    return Who(workers_.at(generation_->state().session_of(rank)));
  };
  return absl::StrCat("nothing comes over the network from ", who(link.suspect), " to ",
                      who(link.witness), ", which both live");
}

// Their leases go on, but what they execute does not end.
void JobState::ExpelSilent(const Turn& turn) {
  std::vector<SessionId> silent;
  for (const auto& [session, worker] : workers_) {
    if (worker.generation != Generation{0}) silent.push_back(session);
  }
  for (SessionId session : silent) {
    const std::string detail = absl::StrCat("it had not ended what it was executing ",
                                            absl::FormatDuration(options_.lease),
                                            " after generation ", ToInt(generation()), " was over");
    Depart(session, v1::DEPARTURE_CAUSE_FAILED, detail, turn);
    turn.effects.outgoing.push_back(CloseSession{session, absl::FailedPreconditionError(detail)});
  }
}

void JobState::GiveUpReforming(const Turn& turn) {
  const std::string why = absl::StrCat("no generation has followed within ",
                                       absl::FormatDuration(options_.reform_timeout), ": ",
                                       rendezvous_.Reason(turn.now), "; ", reforming_.reason());
  GiveUp(absl::DeadlineExceededError(why), turn);
}

void JobState::GiveUp(const absl::Status& why, const Turn& turn) {
  reforming_.GiveUp(std::string(why.message()));
  // Those who were never members, too: they would begin from nothing.
  std::vector<SessionId> all;
  for (const auto& [session, worker] : workers_) all.push_back(session);
  for (SessionId session : all) {
    Depart(session, v1::DEPARTURE_CAUSE_FAILED, why.message(), turn);
    turn.effects.outgoing.push_back(CloseSession{session, why});
  }
}

// They would begin from nothing, and nobody would know. Whether there were any: then the last of
// them has ended the job.
bool JobState::DismissNewcomers(const Turn& turn) {
  std::vector<SessionId> waiting;
  for (const auto& [session, worker] : workers_) waiting.push_back(session);
  const absl::Status why = absl::FailedPreconditionError(NobodyIsTaken());
  for (SessionId session : waiting) {
    Depart(session, v1::DEPARTURE_CAUSE_FAILED, why.message(), turn);
    turn.effects.outgoing.push_back(CloseSession{session, why});
  }
  return !waiting.empty();
}

std::string JobState::NobodyIsTaken() const {
  return absl::StrCat("job ", name_, " takes nobody any more: generation ", ToInt(generation()),
                      " was its last one, ", reforming_.none_follows());
}

// None of those who are in it were in the one before, which was to go on.
void JobState::NoteLostState(const std::vector<SessionId>& sessions, Effects& effects) {
  const bool inherits = absl::c_any_of(
      sessions, [this](SessionId session) { return workers_.at(session).previous_rank >= 0; });
  if (inherits || !reforming_.unfinished()) return;
  const int64_t batches = history_.executed.before().batches + ExecutedInGeneration().batches;
  if (batches == 0 && !history_.executed.has_uncounted()) return;  // there was no state yet
  const std::string sentence = absl::StrCat(
      "no member with state is left: generation ", ToInt(generation()),
      " has none of those who were in the one before, and begins anew; ",
      batches > 0 ? absl::StrCat("the steps of ", batches, batches == 1 ? " batch" : " batches",
                                 " that had been executed are lost")
                  : "what they had done is lost",
      ", but for what the program has saved itself");
  reforming_.StateIsLost(sentence);
  Emit(Event::Kind::kStateLost, sentence, effects);
}

// Those who wait how many they are, and members that somebody does; once a second at most.
void JobState::TellWaiting(const Turn& turn) {
  if (!news_.IsDue(turn.now)) return;
  news_.Forget();
  std::vector<SessionId> waiting, members;
  for (const auto& [session, worker] : workers_) {
    (worker.generation == Generation{0} ? waiting : members).push_back(session);
  }
  // Members, where they can do something about it.
  const bool news = reforming_.wanted() && !reforming_.limit_reached() && negotiating() &&
                    news_.told_members() != rendezvous_.waiting();
  if (!news) members.clear();
  if (waiting.empty() && members.empty()) return;
  news_.Told(turn.now);
  if (!waiting.empty()) {
    std::shared_ptr<v1::CoordinatorMessage> message = NewMessage(Generation{0});
    v1::Waiting* told = message->mutable_waiting();
    told->set_joined(rendezvous_.waiting());
    told->set_min_workers(rendezvous_.options().min_workers);
    told->set_max_workers(rendezvous_.options().max_workers);
    told->set_reason(forming_.not_stored().empty() ? rendezvous_.Reason(turn.now)
                                                   : forming_.not_stored());
    turn.effects.outgoing.push_back(Deliver{std::move(waiting), std::move(message)});
  }
  if (!members.empty()) {
    std::shared_ptr<v1::CoordinatorMessage> message = NewMessage(generation());
    news_.TellMembers(rendezvous_.waiting());
    message->mutable_newcomers()->set_waiting(news_.told_members());
    turn.effects.outgoing.push_back(Deliver{std::move(members), std::move(message)});
  }
}

}  // namespace coordd
