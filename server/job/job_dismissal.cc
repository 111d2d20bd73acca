// Members that are to go: evicted at once, or drained, which is to leave by themselves at a point
// where all ranks agree on the change of members, and to be evicted if they have not in time.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "server/job/job_state.h"
#include "server/model/job_record.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

absl::Duration GraceOf(const v1::DismissRequest& request) {
  return request.grace_seconds() > 0 ? absl::Seconds(request.grace_seconds()) : kDefaultDrainGrace;
}

std::string AskedBy(const v1::DismissRequest& request) {
  return request.asked_by().empty() ? "an operator" : OneLine(request.asked_by());
}

}  // namespace

absl::StatusOr<std::vector<SessionId>> JobState::Meant(const v1::DismissRequest& request) const {
  if (ended()) return absl::NotFoundError(absl::StrCat("job ", name_, " has ended"));
  if (resume_.has_value()) {
    return absl::UnavailableError(absl::StrCat(
        "the members of job ", name_,
        " have not all come back since coordd was started again: try again in a moment"));
  }
  std::vector<SessionId> meant;
  const auto& launches = request.launches();
  for (const auto& [session, worker] : workers_) {
    const v1::HostIdentity& host = worker.join.host();
    const bool is_member = worker.generation != Generation{0};
    const bool is_launch =
        !worker.join.launch().empty() &&
        std::find(launches.begin(), launches.end(), worker.join.launch()) != launches.end();
    const bool is_node = request.has_node() &&
                         (host.hostname() == request.node() || host.node_id() == request.node());
    const bool is_rank =
        request.has_rank() && is_member && ToInt(worker.place.rank) == request.rank();
    if (is_launch || is_node || is_rank) meant.push_back(session);
  }
  // As people look for them: by rank, and behind them who has none yet.
  const auto rank_or_last = [this](SessionId session) {
    const Worker& worker = workers_.at(session);
    return worker.generation == Generation{0} ? std::numeric_limits<int32_t>::max()
                                              : ToInt(worker.place.rank);
  };
  std::stable_sort(meant.begin(), meant.end(),
                   [&](SessionId a, SessionId b) { return rank_or_last(a) < rank_or_last(b); });
  // A node may be given back after the last of its workers has gone.
  const bool reopens = request.action() == v1::DISMISS_ACTION_LIFT && request.has_node() &&
                       drains_.IsClosed(request.node());
  if (!meant.empty() || reopens) return meant;
  if (request.has_rank() && !generation_.has_value()) {
    return absl::UnavailableError(absl::StrCat(
        "job ", name_, " has no ranks at the moment: ",
        forming_.not_stored().empty() ? "no generation is running" : forming_.not_stored(),
        "; try again"));
  }
  if (request.has_rank()) {
    return absl::NotFoundError(absl::StrCat("job ", name_, " has no rank ", request.rank(),
                                            ": it has ", generation_->state().size(), ", from 0"));
  }
  if (request.has_node()) {
    return absl::NotFoundError(absl::StrCat("job ", name_, " has no worker on a node ",
                                            OneLine(Truncated(request.node(), 256))));
  }
  return absl::NotFoundError(absl::StrCat("job ", name_, " has none of the launched workers"));
}

// Whether the job can go on without them.
absl::Status JobState::MayGo(const v1::DismissRequest& request,
                             const std::vector<SessionId>& meant) const {
  if (request.action() == v1::DISMISS_ACTION_LIFT) return absl::OkStatus();
  const bool drain = request.action() == v1::DISMISS_ACTION_DRAIN;
  const bool follows = reforming_.wanted() && !reforming_.limit_reached();
  const std::string end = absl::StrCat(
      "job ", name_, " ends for all ", workers_.size(), " when a member goes (",
      reforming_.wanted() ? absl::StrCat("--reset-limit ", options_.reset_limit, " is reached")
                          : "on_failure end: coordrun --min-np makes one that goes on",
      ")");
  if (drain && !follows)
    return absl::FailedPreconditionError(absl::StrCat(end, ": nobody in it can be drained"));
  for (SessionId session : meant) {
    const Worker& worker = workers_.at(session);
    if (!drain || worker.join.drains()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        Who(worker), " has a version of coordd's library that cannot be asked to leave: evict it"));
  }
  if (request.force()) return absl::OkStatus();
  int32_t stay = 0;
  bool members = false;
  for (const auto& [session, worker] : workers_) {
    const bool goes = std::find(meant.begin(), meant.end(), session) != meant.end();
    members = members || (goes && worker.generation != Generation{0});
    if (!goes && drains_.Find(worker.join.worker_id()) == nullptr) ++stay;
  }
  if (members && !follows) {
    return absl::FailedPreconditionError(
        absl::StrCat(end, ": expected --force, if that is what you want"));
  }
  const int32_t needed = rendezvous_.options().min_workers;
  if (stay >= needed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("only ", stay, stay == 1 ? " worker" : " workers", " of job ", name_,
                   " would be left, and it needs ", needed, " (min_workers): they would wait ",
                   absl::FormatDuration(options_.reform_timeout),
                   " for others and then fail; expected --force, if that is what you want"));
}

void JobState::Dismiss(const DismissCall& call, const Turn& turn) {
  const v1::DismissRequest& request = call.request;
  const absl::StatusOr<std::vector<SessionId>> meant = Meant(request);
  absl::Status status = meant.ok() ? MayGo(request, *meant) : meant.status();
  const bool drains_node = request.action() == v1::DISMISS_ACTION_DRAIN && request.has_node();
  const bool closes_node = drains_node && !drains_.IsClosed(request.node());
  if (status.ok() && drains_node) status = drains_.CloseNode(request.node(), AskedBy(request));
  if (!status.ok()) {
    turn.effects.outgoing.push_back(DismissAnswer{.call = call.call, .status = status});
    return;
  }
  DismissAnswer answer{.call = call.call};
  answer.reply.set_job(name_);
  answer.reply.set_generation(ToInt(generation()));
  if (request.action() == v1::DISMISS_ACTION_DRAIN)
    answer.reply.set_grace_seconds(absl::ToDoubleSeconds(GraceOf(request)));
  for (SessionId session : *meant) {
    const Worker& worker = workers_.at(session);
    v1::DismissedWorker& entry = *answer.reply.add_workers();
    entry.set_rank(worker.generation == Generation{0} ? -1 : ToInt(worker.place.rank));
    entry.set_hostname(worker.join.host().hostname());
    entry.set_pid(worker.join.pid());
    entry.set_worker_id(worker.join.worker_id());
    entry.set_launch(worker.join.launch());
  }
  switch (request.action()) {
    case v1::DISMISS_ACTION_EVICT:
      for (SessionId session : *meant)
        Evict(session, absl::StrCat("was evicted by ", AskedBy(request)), turn);
      turn.effects.outgoing.push_back(std::move(answer));
      return;
    case v1::DISMISS_ACTION_DRAIN:
      for (const v1::DismissedWorker& worker : answer.reply.workers())
        drains_.Ask(worker.worker_id(), AskedBy(request), GraceOf(request));
      if (drains_node) answer.reply.set_node(request.node());
      break;
    default:
      for (SessionId session : *meant) LiftDrain(session, AskedBy(request), turn.effects);
      if (request.has_node() && drains_.OpenNode(request.node())) {
        answer.reply.set_node(request.node());
        Emit(Event::Kind::kDrainLifted,
             absl::StrCat("node ", OneLine(request.node()), " takes new workers again, says ",
                          AskedBy(request)),
             turn.effects);
      }
  }
  // Whoever is answered may rely on it.
  dismissals_.Await({std::move(answer), closes_node});
  if (!PersistDrains(call.call, turn.effects)) OnDrainsStored(call.call, absl::OkStatus(), turn);
}

void JobState::Evict(SessionId session, const std::string& detail, const Turn& turn) {
  Depart(session, v1::DEPARTURE_CAUSE_EVICTED, detail, turn);
  turn.effects.outgoing.push_back(
      CloseSession{session, absl::FailedPreconditionError(absl::StrCat("this worker ", detail))});
}

void JobState::LiftDrain(SessionId session, absl::string_view by, Effects& effects) {
  const Worker& worker = workers_.at(session);
  if (!drains_.Drop(worker.join.worker_id())) return;
  Emit(Event::Kind::kDrainLifted, absl::StrCat(Who(worker), " may stay after all, says ", by),
       effects);
  std::shared_ptr<v1::CoordinatorMessage> message = NewMessage(worker.generation);
  message->mutable_drain_notice()->set_lifted(true);
  effects.outgoing.push_back(Deliver{{session}, std::move(message)});
}

// Whether there is something to wait for.
bool JobState::PersistDrains(CallId call, Effects& effects) {
  if (!durability_.on || !dismissals_.Store(/*is_empty=*/drains_.empty())) return false;
  effects.persist.push_back({name_, Generation{0}, {DrainWrite(name_, drains_.Record())}, call});
  return call != CallId{0};
}

void JobState::OnDrainsStored(CallId call, const absl::Status& status, const Turn& turn) {
  std::optional<Dismissals::Pending> pending = dismissals_.Take(call);
  if (!pending.has_value()) return;  // the job has ended meanwhile
  const bool closes_node = pending->closes_node;
  DismissAnswer answer = std::move(pending->answer);
  for (const v1::DismissedWorker& worker : answer.reply.workers()) {
    const Drain* drain = drains_.Find(worker.worker_id());
    const auto session = SessionOf(worker.worker_id());
    if (drain == nullptr || drain->has_begun()) continue;
    if (status.ok() && resume_.has_value()) continue;  // who comes back is told then
    if (status.ok() && session.has_value()) {
      BeginDrain(*session, turn);
    } else {
      drains_.Drop(worker.worker_id());
    }
  }
  if (!status.ok()) {
    if (closes_node) drains_.OpenNode(answer.reply.node());
    const bool drained = answer.reply.grace_seconds() > 0;
    answer.reply.Clear();
    answer.status = absl::UnavailableError(
        absl::StrCat(drained ? "nobody was asked, since it could not be stored: "
                             : "lifted until coordd is started again: it could not be stored: ",
                     status.message()));
  }
  turn.effects.outgoing.push_back(std::move(answer));
}

std::optional<SessionId> JobState::SessionOf(const std::string& worker_id) const {
  // Each Join asks, and few find somebody: ten thousand that come must not look at each other.
  if (!workers_.Counts(worker_id) && !OldIncarnation(worker_id).has_value()) return std::nullopt;
  for (const auto& [session, worker] : workers_)
    if (worker.join.worker_id() == worker_id) return session;
  return std::nullopt;
}

void JobState::BeginDrain(SessionId session, const Turn& turn) {
  const Worker& worker = workers_.at(session);
  const Drain& drain = drains_.Begin(worker.join.worker_id(), turn.now);
  Emit(Event::Kind::kDrainBegan,
       absl::StrCat(Who(worker), " is asked to leave within ", absl::FormatDuration(drain.grace),
                    ", by ", drain.asked_by),
       turn.effects);
  const bool was_a_member = worker.generation != Generation{0} || worker.previous != Generation{0};
  if (was_a_member) return TellDrain(session, drain, turn);
  // It has nothing to finish.
  const std::string detail = DrainedText(drain);
  Depart(session, v1::DEPARTURE_CAUSE_DRAINED, detail, turn);
  turn.effects.outgoing.push_back(
      CloseSession{session, absl::FailedPreconditionError(
                                absl::StrCat("this worker ", detail, ", before it was a member"))});
}

void JobState::TellDrain(SessionId session, const Drain& drain, const Turn& turn) const {
  std::shared_ptr<v1::CoordinatorMessage> message = NewMessage(workers_.at(session).generation);
  v1::DrainNotice* notice = message->mutable_drain_notice();
  ToProto(drain.until - turn.now, notice->mutable_grace());
  notice->set_asked_by(drain.asked_by);
  turn.effects.outgoing.push_back(Deliver{{session}, std::move(message)});
}

std::string JobState::DrainedText(const Drain& drain) {
  return absl::StrCat("was drained: ", drain.asked_by, " had asked it to leave");
}

// Its process knows that it has to end: that is stored, but nobody waits for it, since it asks
// again if coordd dies.
void JobState::OnDrainRequest(SessionId session, const Worker& worker,
                              const v1::DrainRequest& request, const Turn& turn) {
  if (!reforming_.wanted() || !worker.join.drains()) return;
  const std::string& id = worker.join.worker_id();
  const absl::Duration asked = FromProto(request.grace());
  const absl::Duration grace = asked > absl::ZeroDuration() ? asked : kDefaultDrainGrace;
  const Drain* drain = drains_.Find(id);
  if (drain != nullptr && drain->has_begun() && drain->until <= turn.now + grace)
    return TellDrain(session, *drain, turn);
  drains_.Ask(id,
              request.reason().empty()
                  ? "its own process"
                  : absl::StrCat("its own process (", OneLine(request.reason()), ")"),
              grace);
  PersistDrains(CallId{0}, turn.effects);
  BeginDrain(session, turn);
}

// Those who have come back to a coordd that was started again.
void JobState::TellDrains(const Turn& turn) {
  const size_t asked = drains_.size();
  for (const std::string& id : drains_.worker_ids()) {
    if (drains_.Find(id) == nullptr) continue;  // the job has ended with the one before
    if (const auto session = SessionOf(id)) {
      BeginDrain(*session, turn);
    } else {
      drains_.Drop(id);
    }
  }
  if (drains_.size() < asked) PersistDrains(CallId{0}, turn.effects);
}

void JobState::WatchDrains(const Turn& turn) {
  for (const std::string& id : drains_.Overdue(turn.now)) {
    const Drain drain = *drains_.Find(id);
    const auto session = SessionOf(id);
    if (session.has_value()) {
      Evict(*session,
            absl::StrCat("was evicted: it had not left ", absl::FormatDuration(drain.grace),
                         " after ", drain.asked_by, " had asked it to"),
            turn);
    } else {
      drains_.Drop(id);
    }
  }
}

absl::Time JobState::NextLeaving() const {
  if (drains_.size() == 0) return absl::InfinitePast();
  const bool anybody = std::any_of(workers_.begin(), workers_.end(), [this](const auto& entry) {
    const Drain* drain = drains_.Find(entry.second.join.worker_id());
    return drain != nullptr && drain->has_begun();
  });
  return anybody ? drains_.awaited_until() : absl::InfinitePast();
}

// The job is over.
void JobState::FailDismissals(Effects& effects) {
  dismissals_.Fail(absl::AbortedError(absl::StrCat("job ", name_, " has ended")), effects);
  drains_ = Drains();
}

}  // namespace coordd
