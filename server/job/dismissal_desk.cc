#include "server/job/dismissal_desk.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/one_line.h"
#include "common/protocol/proto_convert.h"
#include "server/model/job_record.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

absl::Duration GraceOf(const v1::DismissRequest& request) {
  return request.grace_seconds() > 0 ? absl::Seconds(request.grace_seconds()) : kDefaultDrainGrace;
}

std::string AskedBy(const v1::DismissRequest& request) {
  return request.asked_by().empty() ? "somebody" : OneLine(request.asked_by());
}

bool Names(const v1::DismissRequest& request, const JobWorker& worker) {
  const auto& launches = request.launches();
  const v1::HostIdentity& host = worker.join.host();
  const bool is_launch =
      !worker.join.launch().empty() &&
      std::find(launches.begin(), launches.end(), worker.join.launch()) != launches.end();
  const bool is_node =
      request.has_node() && (host.hostname() == request.node() || host.node_id() == request.node());
  const bool is_rank = request.has_rank() && worker.generation != Generation{0} &&
                       ToInt(worker.place.rank) == request.rank();
  return is_launch || is_node || is_rank;
}

void AddTo(v1::DismissReply& reply, const JobWorker& worker) {
  v1::DismissedWorker& entry = *reply.add_workers();
  entry.set_rank(worker.generation == Generation{0} ? -1 : ToInt(worker.place.rank));
  entry.set_hostname(worker.join.host().hostname());
  entry.set_pid(worker.join.pid());
  entry.set_worker_id(worker.join.worker_id());
  entry.set_launch(worker.join.launch());
}

std::string TextOf(const Drain& drain) {
  return absl::StrCat("was drained: ", drain.asked_by, " had asked it to leave");
}

absl::Status Evicted(const std::string& detail) {
  return absl::FailedPreconditionError(absl::StrCat("this worker ", detail));
}

constexpr char kItself[] = "its own process";

}  // namespace

absl::StatusOr<std::vector<SessionId>> DismissalDesk::Meant(const v1::DismissRequest& request,
                                                            const JobOutlook& job) const {
  const std::string& name = messages_.name();
  if (job.ended) return absl::NotFoundError(absl::StrCat("job ", name, " has ended"));
  if (job.returning) {
    return absl::UnavailableError(absl::StrCat(
        "the members of job ", name,
        " have not all come back since coordd was started again: try again in a moment"));
  }
  std::vector<SessionId> meant;
  for (const auto& [session, worker] : workers_)
    if (Names(request, worker)) meant.push_back(session);
  // As people look for them: by rank, and behind them who has none yet.
  const auto rank_or_last = [this](SessionId session) {
    const JobWorker& worker = workers_.at(session);
    return worker.generation == Generation{0} ? std::numeric_limits<int32_t>::max()
                                              : ToInt(worker.place.rank);
  };
  std::stable_sort(meant.begin(), meant.end(),
                   [&](SessionId a, SessionId b) { return rank_or_last(a) < rank_or_last(b); });
  // A node may be given back after the last of its workers has gone.
  const bool reopens = request.action() == v1::DISMISS_ACTION_LIFT && request.has_node() &&
                       drains_.IsClosed(request.node());
  if (meant.empty() && !reopens) return NobodyMeant(request, job);
  return meant;
}

absl::Status DismissalDesk::NobodyMeant(const v1::DismissRequest& request,
                                        const JobOutlook& job) const {
  const std::string& name = messages_.name();
  if (request.has_rank() && !job.size.has_value()) {
    return absl::UnavailableError(absl::StrCat(
        "job ", name, " has no ranks at the moment: ",
        job.not_stored.empty() ? "no generation is running" : job.not_stored, "; try again"));
  }
  if (request.has_rank()) {
    return absl::NotFoundError(absl::StrCat("job ", name, " has no rank ", request.rank(),
                                            ": it has ", *job.size, ", from 0"));
  }
  if (request.has_node()) {
    return absl::NotFoundError(absl::StrCat("job ", name, " has no worker on a node ",
                                            OneLine(Truncated(request.node(), 256))));
  }
  return absl::NotFoundError(absl::StrCat("job ", name, " has none of the launched workers"));
}

// Whether the job can go on without them.
absl::Status DismissalDesk::MayGo(const v1::DismissRequest& request,
                                  const std::vector<SessionId>& meant) const {
  if (request.action() == v1::DISMISS_ACTION_LIFT) return absl::OkStatus();
  const bool drain = request.action() == v1::DISMISS_ACTION_DRAIN;
  const bool follows = reforming_.wanted() && !reforming_.limit_reached();
  const std::string end = absl::StrCat(
      "job ", messages_.name(), " ends for all ", workers_.size(), " when a member goes (",
      reforming_.wanted() ? absl::StrCat("--reset-limit ", options_.reset_limit, " is reached")
                          : "on_failure end: coordrun --min-np makes one that goes on",
      ")");
  if (drain && !follows)
    return absl::FailedPreconditionError(absl::StrCat(end, ": nobody in it can be drained"));
  for (SessionId session : meant) {
    const JobWorker& worker = workers_.at(session);
    if (!drain || worker.join.drains()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        Who(worker), " has a version of coordd's library that cannot be asked to leave: evict it"));
  }
  if (request.force()) return absl::OkStatus();
  return MayGoUnforced(request, meant, follows, end);
}

absl::Status DismissalDesk::MayGoUnforced(const v1::DismissRequest& request,
                                          const std::vector<SessionId>& meant, bool follows,
                                          const std::string& end) const {
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
      absl::StrCat("only ", stay, stay == 1 ? " worker" : " workers", " of job ", messages_.name(),
                   " would be left, and it needs ", needed, " (min_workers): they would wait ",
                   absl::FormatDuration(options_.reform_timeout),
                   " for others and then fail; expected --force, if that is what you want"));
}

void DismissalDesk::OnCall(const DismissCall& call, const JobOutlook& job, Dismiss dismiss,
                           const Turn& turn) {
  const v1::DismissRequest& request = call.request;
  const absl::StatusOr<std::vector<SessionId>> meant = Meant(request, job);
  absl::Status status = meant.ok() ? MayGo(request, *meant) : meant.status();
  const bool drains_node = request.action() == v1::DISMISS_ACTION_DRAIN && request.has_node();
  const bool closes_node = drains_node && !drains_.IsClosed(request.node());
  if (status.ok() && drains_node) status = drains_.CloseNode(request.node(), AskedBy(request));
  if (!status.ok()) {
    turn.effects.outgoing.push_back(DismissAnswer{.call = call.call, .status = status});
    return;
  }
  DismissAnswer answer{.call = call.call};
  answer.reply.set_job(messages_.name());
  answer.reply.set_generation(ToInt(job.generation));
  if (request.action() == v1::DISMISS_ACTION_DRAIN)
    answer.reply.set_grace_seconds(absl::ToDoubleSeconds(GraceOf(request)));
  for (SessionId session : *meant) AddTo(answer.reply, workers_.at(session));
  switch (request.action()) {
    case v1::DISMISS_ACTION_EVICT:
      for (SessionId session : *meant) {
        const std::string detail = absl::StrCat("was evicted by ", AskedBy(request));
        dismiss(session, v1::DEPARTURE_CAUSE_EVICTED, detail, Evicted(detail));
      }
      turn.effects.outgoing.push_back(std::move(answer));
      return;
    case v1::DISMISS_ACTION_DRAIN:
      for (const v1::DismissedWorker& worker : answer.reply.workers())
        drains_.Ask(worker.worker_id(), AskedBy(request), GraceOf(request));
      if (drains_node) answer.reply.set_node(request.node());
      break;
    default:
      for (SessionId session : *meant) Lift(session, AskedBy(request), turn.effects);
      if (request.has_node() && drains_.OpenNode(request.node())) {
        answer.reply.set_node(request.node());
        messages_.Emit(Event::Kind::kDrainLifted,
                       absl::StrCat("node ", OneLine(request.node()),
                                    " takes new workers again, says ", AskedBy(request)),
                       turn.effects);
      }
  }
  // Whoever is answered may rely on it.
  dismissals_.Await({std::move(answer), closes_node});
  if (!Persist(call.call, turn.effects))
    OnStored(call.call, absl::OkStatus(), job.returning, dismiss, turn);
}

void DismissalDesk::Lift(SessionId session, absl::string_view by, Effects& effects) {
  const JobWorker& worker = workers_.at(session);
  if (!drains_.Drop(worker.join.worker_id())) return;
  messages_.Emit(Event::Kind::kDrainLifted,
                 absl::StrCat(Who(worker), " may stay after all, says ", by), effects);
  messages_.MayStay(session, worker.generation, effects);
}

// Whether there is something to wait for.
bool DismissalDesk::Persist(CallId call, Effects& effects) {
  if (!durability_.on || !dismissals_.Store(/*is_empty=*/drains_.empty())) return false;
  const std::string& name = messages_.name();
  effects.persist.push_back({name, Generation{0}, {DrainWrite(name, drains_.Record())}, call});
  return call != CallId{0};
}

void DismissalDesk::OnStored(CallId call, const absl::Status& status, bool returning,
                             Dismiss dismiss, const Turn& turn) {
  std::optional<Dismissals::Pending> pending = dismissals_.Take(call);
  if (!pending.has_value()) return;  // the job has ended meanwhile
  const bool closes_node = pending->closes_node;
  DismissAnswer answer = std::move(pending->answer);
  for (const v1::DismissedWorker& worker : answer.reply.workers()) {
    const Drain* drain = drains_.Find(worker.worker_id());
    if (drain == nullptr || drain->has_begun()) continue;
    if (status.ok() && returning) continue;  // who comes back is told then
    const auto session = workers_.SessionOf(worker.worker_id());
    if (status.ok() && session.has_value()) {
      Begin(*session, dismiss, turn);
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

void DismissalDesk::Begin(SessionId session, Dismiss dismiss, const Turn& turn) {
  const JobWorker& worker = workers_.at(session);
  const Drain& drain = drains_.Begin(worker.join.worker_id(), turn.now);
  messages_.Emit(Event::Kind::kDrainBegan,
                 absl::StrCat(Who(worker), " is asked to leave within ",
                              absl::FormatDuration(drain.grace), ", by ", drain.asked_by),
                 turn.effects);
  const bool was_a_member = worker.generation != Generation{0} || worker.previous != Generation{0};
  if (was_a_member) return messages_.AskToLeave(session, worker.generation, drain, turn);
  // It has nothing to finish.
  const std::string detail = TextOf(drain);
  dismiss(session, v1::DEPARTURE_CAUSE_DRAINED, detail,
          absl::FailedPreconditionError(
              absl::StrCat("this worker ", detail, ", before it was a member")));
}

std::optional<std::string> DismissalDesk::DrainedText(const std::string& worker_id,
                                                      bool says_so) const {
  if (const Drain* drain = drains_.Find(worker_id)) return TextOf(*drain);
  if (says_so) return TextOf(Drain{kItself});
  return std::nullopt;
}

// That is stored, but nobody waits for it, since the process asks again if coordd dies.
void DismissalDesk::OnRequest(SessionId session, const v1::DrainRequest& request, Dismiss dismiss,
                              const Turn& turn) {
  const JobWorker& worker = workers_.at(session);
  if (!reforming_.wanted() || !worker.join.drains()) return;
  const std::string& id = worker.join.worker_id();
  const absl::Duration asked = FromProto(request.grace());
  const absl::Duration grace = asked > absl::ZeroDuration() ? asked : kDefaultDrainGrace;
  const Drain* drain = drains_.Find(id);
  if (drain != nullptr && drain->has_begun() && drain->until <= turn.now + grace)
    return messages_.AskToLeave(session, worker.generation, *drain, turn);
  drains_.Ask(id,
              request.reason().empty()
                  ? kItself
                  : absl::StrCat(kItself, " (", OneLine(request.reason()), ")"),
              grace);
  Persist(CallId{0}, turn.effects);
  Begin(session, dismiss, turn);
}

void DismissalDesk::TellReturned(Dismiss dismiss, const Turn& turn) {
  const size_t asked = drains_.size();
  for (const std::string& id : drains_.worker_ids()) {
    if (drains_.Find(id) == nullptr) continue;  // the job has ended with the one before
    if (const auto session = workers_.SessionOf(id)) {
      Begin(*session, dismiss, turn);
    } else {
      drains_.Drop(id);
    }
  }
  if (drains_.size() < asked) Persist(CallId{0}, turn.effects);
}

void DismissalDesk::Watch(Dismiss dismiss, const Turn& turn) {
  for (const std::string& id : drains_.Overdue(turn.now)) {
    const Drain* const drain = drains_.Find(id);
    if (drain == nullptr) continue;  // the job has ended with the one before
    const auto session = workers_.SessionOf(id);
    if (!session.has_value()) {
      drains_.Drop(id);
      continue;
    }
    const std::string detail =
        absl::StrCat("was evicted: it had not left ", absl::FormatDuration(drain->grace), " after ",
                     drain->asked_by, " had asked it to");
    dismiss(*session, v1::DEPARTURE_CAUSE_EVICTED, detail, Evicted(detail));
  }
}

void DismissalDesk::NoteFormed(Effects& effects) {
  if (drains_.ForgetGone()) Persist(CallId{0}, effects);
}

absl::Time DismissalDesk::NextLeaving() const {
  if (drains_.size() == 0) return absl::InfinitePast();
  const bool anybody = std::any_of(workers_.begin(), workers_.end(), [this](const auto& entry) {
    const Drain* drain = drains_.Find(entry.second.join.worker_id());
    return drain != nullptr && drain->has_begun();
  });
  return anybody ? drains_.awaited_until() : absl::InfinitePast();
}

void DismissalDesk::Fail(Effects& effects) {
  dismissals_.Fail(absl::AbortedError(absl::StrCat("job ", messages_.name(), " has ended")),
                   effects);
  drains_ = Drains();
}

}  // namespace coordd
