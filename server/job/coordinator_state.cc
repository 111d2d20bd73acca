#include "server/job/coordinator_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/duration_text.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/protocol/proto_convert.h"
#include "server/job/job_state.h"
#include "server/model/job_record.h"
#include "server/model/process_exit.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Each may hold 64 MiB until it is answered. One owner's jobs leave room for another's.
constexpr int64_t kMaxTraces = 4;
constexpr int64_t kMaxTracesPerOwner = 2;

template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <typename... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

CoordinatorState::CoordinatorState(const ServerOptions& options, Epoch epoch)
    : options_(options), epoch_(epoch) {}

CoordinatorState::CoordinatorState(const ServerOptions& options, const RestoredState& restored,
                                   absl::Time now, Effects& effects)
    : options_(options),
      durability_{.on = true, .cluster_id = restored.cluster_id, .outlives = restored.outlives},
      epoch_(restored.epoch),
      last_forgotten_(restored.last_forgotten),
      last_now_(now) {  // members' time to come back runs from here on
  const Turn turn{now, effects, &graveyard_};
  for (const auto& [name, record] : restored.jobs) {
    auto job = std::make_unique<JobState>(name, options_, durability_, epoch_,
                                          Generation{record.generation()}, turn.now);
    const auto drains = restored.drains.find(name);
    job->Restore(record, drains != restored.drains.end() ? drains->second : v1::DrainRecord(),
                 turn);
    job->SetOwner(job->owner(), BudgetOf(job->owner()));
    jobs_[name] = std::move(job);
  }
  // A job that was forgotten is back when the disk could not be told.
  while (jobs_.size() > static_cast<size_t>(options_.max_jobs) && ForgetOneEnded(turn.effects)) {
  }
  jobs_restored_ = jobs_.size();
}

CoordinatorState::~CoordinatorState() = default;

void CoordinatorState::Step(const Inbound& in, absl::Time now, Effects& effects) {
  const Turn turn{now, effects, &graveyard_};
  NoticeSleep(turn);
  const size_t first = turn.effects.outgoing.size();
  const size_t first_event = turn.effects.events.size();
  std::visit(Overloaded{[&](const SessionMessage& m) { OnMessage(m, turn); },
                        [&](const SharedMessage& m) { OnShared(m, turn); },
                        [&](const SessionEnded& m) { OnSessionEnded(m, turn); },
                        [&](const StreamsLost& m) { OnStreamsLost(m, turn); },
                        [&](const StoreCall& m) { OnStoreCall(m, turn); },
                        [&](const TraceCall& m) { OnTraceCall(m, turn); },
                        [&](const ExitsReported& m) { OnExits(m, turn); },
                        [&](const DismissCall& m) { OnDismiss(m, turn); },
                        [&](const CallCancelled& m) { OnCancelled(m, turn.effects); },
                        [&](const StopRequested& m) { OnStop(m, turn); },
                        [&](const Persisted& m) { OnPersisted(m, turn); }},
             in);
  NameCaller(in, first_event, turn.effects);
  Settle(turn.effects, first);
}

void CoordinatorState::Tick(absl::Time now, Effects& effects) {
  int64_t room_for_silent = kSilentInTurn;
  int64_t entries = NextGeneration::kEntriesATurn;
  const Turn turn{now, effects, &graveyard_, &room_for_silent, &entries};
  NoticeSleep(turn);
  const size_t first = turn.effects.outgoing.size();
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    JobState& job = *it->second;
    job.Tick(turn);
    const auto next = std::next(it);
    if (job.ended() && job.ended_since() + options_.ended_job_retention <= turn.now)
      Forget(it, turn.effects);
    it = next;
  }
  graveyard_.Free();
  Settle(turn.effects, first);
}

absl::Time CoordinatorState::NextDeadline() const {
  if (!graveyard_.empty()) return absl::InfinitePast();
  absl::Time next = absl::InfiniteFuture();
  bool has_workers = false;
  for (const auto& [name, job] : jobs_) {
    next = std::min(next, job->ended() ? job->ended_since() + options_.ended_job_retention
                                       : job->NextDeadline());
    has_workers = has_workers || job->has_workers();
  }
  // Who looks at the clock often enough can tell its own sleep from the silence of others.
  if (has_workers) next = std::min(next, last_now_ + options_.lease / 4);
  return next;
}

std::vector<MembersReports> CoordinatorState::WhoHasReported() const {
  std::vector<MembersReports> all;
  for (const auto& [name, job] : jobs_)
    if (const auto reports = job->WhoHasReported()) all.push_back(*reports);
  return all;
}

void CoordinatorState::Describe(const std::string& job, absl::Time now,
                                v1::ServerState* state) const {
  state->set_epoch(ToInt(epoch_));
  if (!job.empty()) {
    for (const JobState* found : WithGroups(job)) found->Describe(now, state->add_jobs());
    return;
  }
  for (const auto& [name, job_state] : jobs_) job_state->Describe(now, state->add_jobs());
}

std::string CoordinatorState::DescribeNext(const std::string& after, absl::Time now,
                                           v1::ServerState* state) const {
  state->set_epoch(ToInt(epoch_));
  size_t bytes = 0;
  for (auto it = jobs_.upper_bound(after); it != jobs_.end(); ++it) {
    it->second->Describe(now, state->add_jobs());
    bytes += state->jobs(state->jobs_size() - 1).ByteSizeLong();
    if (bytes >= kDescribedInTurn) return std::next(it) == jobs_.end() ? "" : it->first;
  }
  return "";
}

std::vector<JobState*> CoordinatorState::WithGroups(const std::string& job) const {
  std::vector<JobState*> found;
  if (const auto own = jobs_.find(job); own != jobs_.end()) found.push_back(own->second.get());
  const std::string begin = job + ".";
  for (auto it = jobs_.lower_bound(begin); it != jobs_.end(); ++it) {
    if (!absl::StartsWith(it->first, begin)) break;
    found.push_back(it->second.get());
  }
  return found;
}

void CoordinatorState::NoticeSleep(const Turn& turn) {
  const absl::Duration gap = turn.now - last_now_;
  const bool first_call = last_now_ == absl::InfinitePast();
  last_now_ = turn.now;
  // Half a lease without a single turn, although NextDeadline asks for four turns per lease: nobody
  // could have been heard in that time.
  if (first_call || gap <= options_.lease / 2) return;
  bool forgave = false;
  for (const auto& [name, job] : jobs_) {
    if (!job->has_workers()) continue;
    job->Forgive(gap, turn.now);
    forgave = true;
  }
  if (!forgave) return;
  Event event{.kind = Event::Kind::kAsleep};
  event.text = absl::StrCat("coordd was not running for ", DurationText(gap),
                            ": all leases are that much longer");
  turn.effects.events.push_back(std::move(event));
}

void CoordinatorState::OnMessage(const SessionMessage& in, const Turn& turn) {
  if (closed_.contains(in.session)) return;
  const auto it = joined_.find(in.session);
  if (it != joined_.end()) {
    jobs_.at(it->second.job)->OnMessage(in.session, in.message, turn);
  } else if (in.message.has_join()) {
    OnJoin(in, turn);
  } else {
    RefuseFirstMessage(in.session, turn);
  }
}

void CoordinatorState::OnShared(const SharedMessage& in, const Turn& turn) {
  for (const SessionRange& range : in.from) {
    if (OnSharedReady(range, *in.message, turn)) continue;
    for (int32_t i = 0; i < range.count; ++i) {
      const SessionId session{ToInt(range.first) + i};
      const size_t first = turn.effects.outgoing.size();
      const auto it = joined_.find(session);
      if (it != joined_.end()) {
        jobs_.at(it->second.job)->OnMessage(session, *in.message, turn);
      } else {
        OnMessage(SessionMessage{session, *in.message}, turn);
      }
      Settle(turn.effects, first);  // whose session one of them has ended says nothing more
    }
  }
}

// What nodes say in every round, at a fraction of the cost: all is well, and nobody is told
// anything.
bool CoordinatorState::OnSharedReady(SessionRange from, const v1::WorkerMessage& message,
                                     const Turn& turn) {
  if (!message.has_tensors_ready() || from.count == 1) return false;
  const auto it = joined_.find(from.first);
  if (it == joined_.end()) return false;
  return jobs_.at(it->second.job)->OnSharedReady(from, message, turn);
}

void CoordinatorState::OnSessionEnded(const SessionEnded& in, const Turn& turn) {
  closed_.erase(in.session);
  const auto it = joined_.find(in.session);
  if (it == joined_.end()) return;
  gone_.insert(in.session);
  jobs_.at(it->second.job)->OnSessionEnded(in.session, in.detail, turn);
}

void CoordinatorState::OnStreamsLost(const StreamsLost& in, const Turn& turn) {
  std::map<std::string, std::vector<SessionId>> by_job;
  for (SessionId session : in.sessions) {
    closed_.erase(session);
    const auto it = joined_.find(session);
    if (it == joined_.end() || !gone_.insert(session).second) continue;
    by_job[it->second.job].push_back(session);
  }
  for (const auto& [job, sessions] : by_job)
    jobs_.at(job)->OnStreamsLost(sessions, in.detail, turn);
}

void CoordinatorState::OnExits(const ExitsReported& in, const Turn& turn) {
  ExitsAnswer answer{.call = in.call, .status = ValidateExits(in.request)};
  if (answer.status.ok())
    answer.status = MayTryToken(in.caller, in.request.job(), in.request.token());
  if (answer.status.ok()) {
    answer.status = absl::NotFoundError(
        absl::StrCat("there is no job ", OneLine(Truncated(in.request.job(), 128))));
    bool is_first = true;
    for (JobState* job : WithGroups(in.request.job())) {
      const absl::Status told = job->OnExits(in.request, &answer.known, turn);
      if (is_first || told.ok()) answer.status = told;
      is_first = false;
    }
    NoteToken(in.caller, in.request.job(), answer.status);
  }
  turn.effects.outgoing.push_back(std::move(answer));
}

void CoordinatorState::OnDismiss(const DismissCall& in, const Turn& turn) {
  absl::Status status = ValidateDismiss(in.request);
  if (stopping_) status = absl::UnavailableError("this coordd is stopping");
  JobState* job = nullptr;
  if (status.ok()) {
    const absl::StatusOr<JobState*> meant = JobMeant(in);
    status = meant.status();
    if (meant.ok()) job = *meant;
  }
  if (job != nullptr) {
    job->Dismiss(in, turn);
  } else {
    turn.effects.outgoing.push_back(DismissAnswer{.call = in.call, .status = status});
  }
}

void CoordinatorState::OnStoreCall(const StoreCall& in, const Turn& turn) {
  Effects& effects = turn.effects;
  absl::Status status = ValidateJobName(in.job);
  const auto it = jobs_.find(in.job);
  if (stopping_) {
    status = absl::UnavailableError("this coordd is stopping");
  } else if (status.ok() && it == jobs_.end()) {
    status = absl::NotFoundError(absl::StrCat("there is no job ", in.job));
  } else if (status.ok()) {
    status = MayTryToken(in.caller, in.job, in.token);
  }
  if (!status.ok()) {
    effects.outgoing.push_back(StoreReply{.call = in.call, .status = status});
    return;
  }
  job_of_call_[in.call] = in.job;  // until Settle sees the reply
  const size_t first = effects.outgoing.size();
  it->second->OnStoreCall(in, turn);
  // Its own reply is the first, and a wrong token is answered at once.
  const auto* reply =
      first < effects.outgoing.size() ? std::get_if<StoreReply>(&effects.outgoing[first]) : nullptr;
  if (reply != nullptr && reply->call == in.call) NoteToken(in.caller, in.job, reply->status);
}

absl::Status CoordinatorState::MayTraceOneMore(const JobState& job) const {
  int64_t all = 0, own = 0;  // none is an owner's where nobody's certificate is known
  for (const auto& [name, other] : jobs_) {
    if (!other->traced()) continue;
    ++all;
    own += !job.owner().empty() && other->owner() == job.owner() ? 1 : 0;
  }
  if (all < kMaxTraces && own < kMaxTracesPerOwner) return absl::OkStatus();
  const std::string whose =
      own < kMaxTracesPerOwner ? "" : absl::StrCat(" of jobs of ", job.owner());
  return absl::ResourceExhaustedError(
      absl::StrCat(own < kMaxTracesPerOwner ? all : own, " traces", whose,
                   " are under way already: try again when one has ended"));
}

void CoordinatorState::OnTraceCall(const TraceCall& in, const Turn& turn) {
  const std::string& name = in.request.job();
  const auto job = jobs_.find(name);
  absl::Status status;
  if (stopping_) {
    status = absl::UnavailableError("this coordd is stopping");
  } else if (in.caller != nullptr) {
    status = MayCall(*in.caller, Call::kTrace, name, in.request.token());
  }
  if (!status.ok()) {
    // It stays as it is.
  } else if (job == jobs_.end()) {
    status = absl::NotFoundError(absl::StrCat("there is no job ", OneLine(Truncated(name, 128))));
  } else if (status = MayTraceOneMore(*job->second); status.ok()) {
    status = job->second->Trace(in, turn);
  }
  if (status.ok()) {
    job_of_call_[in.call] = name;  // until Settle sees the answer
  } else {
    turn.effects.outgoing.push_back(TraceAnswer{.call = in.call, .status = status});
  }
}

void CoordinatorState::OnCancelled(const CallCancelled& in, Effects& effects) {
  const auto it = job_of_call_.find(in.call);
  if (it == job_of_call_.end()) return;
  jobs_.at(it->second)->CancelCall(in.call, effects);
  job_of_call_.erase(it);
}

void CoordinatorState::OnStop(const StopRequested& in, const Turn& turn) {
  stopping_ = true;
  for (const auto& [name, job] : jobs_) job->Stop(in, turn);
}

// A job may have gone, and one of its name may have come, since it was asked for.
void CoordinatorState::OnPersisted(const Persisted& in, const Turn& turn) {
  const auto it = jobs_.find(in.job);
  if (it == jobs_.end()) return;
  if (in.call != CallId{0}) return it->second->OnDrainsStored(in.call, in.status, turn);
  it->second->OnPersisted(in.generation, in.status, turn);
}

void CoordinatorState::Close(SessionId session, const absl::Status& why, Effects& effects) {
  effects.outgoing.push_back(CloseSession{session, why});
}

bool CoordinatorState::ForgetOneEnded(Effects& effects) {
  auto oldest = jobs_.end();
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
    if (!it->second->ended()) continue;
    if (oldest == jobs_.end() || it->second->ended_since() < oldest->second->ended_since()) {
      oldest = it;
    }
  }
  if (oldest == jobs_.end()) return false;
  Forget(oldest, effects);
  return true;
}

void CoordinatorState::Forget(std::map<std::string, std::unique_ptr<JobState>>::iterator it,
                              Effects& effects) {
  last_forgotten_ = std::max(last_forgotten_, it->second->last_number());
  if (durability_.on) {
    effects.persist.push_back(
        {it->first, Generation{0}, {JobRemoval(it->first), ForgottenWrite(last_forgotten_)}});
  }
  jobs_.erase(it);
}

void CoordinatorState::NameCaller(const Inbound& in, size_t first, Effects& effects) const {
  for (size_t i = first; i < effects.events.size(); ++i) {
    Event& event = effects.events[i];
    if (event.code != absl::StatusCode::kResourceExhausted || event.caller != nullptr) continue;
    const auto* one = std::get_if<SessionMessage>(&in);
    const auto* several = std::get_if<SharedMessage>(&in);  // of one node, which has one relay
    if (one == nullptr && (several == nullptr || several->from.empty())) return;
    const auto sender = joined_.find(one != nullptr ? one->session : several->from.front().first);
    if (sender != joined_.end()) event.caller = sender->second.caller;
  }
}

// To those whose stream has ended nothing is said any more, though a job may still count them.
void CoordinatorState::DropUnheard(Effects& effects, size_t first) {
  const auto unheard = [this](Outgoing& out) {
    if (const auto* close = std::get_if<CloseSession>(&out)) return gone_.contains(close->session);
    auto* deliver = std::get_if<Deliver>(&out);
    if (deliver == nullptr) return false;
    std::erase_if(deliver->to, [this](SessionId session) { return gone_.contains(session); });
    return deliver->to.empty();
  };
  auto& out = effects.outgoing;
  out.erase(std::remove_if(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(), unheard),
            out.end());
  for (auto session = gone_.begin(); session != gone_.end();) {
    const auto job = joined_.find(*session);
    const bool counted = jobs_.at(job->second.job)->Has(*session);
    if (!counted) joined_.erase(job);
    session = counted ? std::next(session) : gone_.erase(session);
  }
}

void CoordinatorState::Settle(Effects& effects, size_t first) {
  if (!gone_.empty()) DropUnheard(effects, first);
  for (size_t i = first; i < effects.outgoing.size(); ++i) {
    if (const auto* close = std::get_if<CloseSession>(&effects.outgoing[i])) {
      joined_.erase(close->session);
      closed_.insert(close->session);
    } else if (const auto* reply = std::get_if<StoreReply>(&effects.outgoing[i])) {
      job_of_call_.erase(reply->call);
    } else if (const auto* answer = std::get_if<TraceAnswer>(&effects.outgoing[i])) {
      job_of_call_.erase(answer->call);
    }
  }
}

absl::Status CoordinatorState::CheckConsistency() const {
  size_t workers = 0;
  size_t calls = 0;
  for (const auto& [name, job] : jobs_) {
    COORDD_RETURN_IF_ERROR(job->CheckConsistency());
    workers += job->workers();
    calls += static_cast<size_t>(job->waiting_calls());
  }
  if (workers != joined_.size()) return absl::InternalError("sessions are miscounted");
  if (calls != job_of_call_.size()) return absl::InternalError("waiting calls are miscounted");
  for (const auto& [session, joined] : joined_) {
    if (closed_.contains(session)) return absl::InternalError("a closed session is in a job");
    if (!jobs_.contains(joined.job)) return absl::InternalError("a session is in a forgotten job");
  }
  if (jobs_.size() > std::max(jobs_restored_, static_cast<size_t>(options_.max_jobs))) {
    return absl::InternalError("more jobs than max_jobs");
  }
  return absl::OkStatus();
}

}  // namespace coordd
