// Who may do what with which job: what of CoordinatorState asks the access rules.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/counted.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/protocol/proto_convert.h"
#include "server/job/coordinator_state.h"
#include "server/job/job_state.h"
#include "server/model/access_rules.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Whether the certificate allows to bring this worker. Whether the worker may come, its job says.
absl::Status MayBring(const Caller& caller, const v1::Join& join) {
  const Call call = caller.of_node ? Call::kNodeSession : Call::kJoin;
  COORDD_RETURN_IF_ERROR(MayCallWithToken(caller.identity, call, join.job()));
  return caller.of_node
             ? MaySpeakFor(caller.identity, join.host().hostname(), join.host().node_id())
             : absl::OkStatus();
}

// Who named no job is not told which there are.
absl::Status OfNoJob(const Caller& caller, Call call, const absl::Status& refused) {
  if (refused.ok()) return MayEverCall(caller.identity, call);
  if (!absl::IsPermissionDenied(refused)) return refused;
  return MayCall(caller.identity, call, {.job = ""});
}

// Nobody, without a name that a certificate proves.
std::string OwnerText(const Identity& identity) {
  const bool is_somebody = identity != WithoutTls() && identity.role != Role::kNone;
  return is_somebody ? ToString(identity) : std::string();
}

}  // namespace

absl::Status CoordinatorState::MayCall(const Caller& caller, Call call, const std::string& job,
                                       absl::string_view token) const {
  const auto it = jobs_.find(job);
  if (it == jobs_.end())
    return coordd::MayCall(caller.identity, call, {.job = job, .exists = false});
  const bool counts = TokenMatters(caller, call, *it, token);
  if (counts && !IsRightAndHard(*it->second, token))
    COORDD_RETURN_IF_ERROR(wrong_tokens_.MayTry(caller, job, last_now_));
  const JobClaim claim = ClaimOf(*it, counts ? token : "");
  if (counts && !claim.knows_token) wrong_tokens_.Note(caller, job, last_now_);
  return coordd::MayCall(caller.identity, call, claim);
}

void CoordinatorState::ForAllJobs(
    const Caller& caller, Call call, absl::string_view token,
    absl::FunctionRef<void(const Jobs::value_type&, const absl::Status&)> visit) const {
  const TokenTried tried = TryForAll(caller, call, token);
  for (const auto& entry : jobs_) visit(entry, MayCallHaving(tried, caller, call, entry));
}

CoordinatorState::TokenTried CoordinatorState::TryForAll(const Caller& caller, Call call,
                                                         absl::string_view token) const {
  const std::string all;  // as the name of a job
  const TokenTried tried{.token = token, .may_try = wrong_tokens_.MayTry(caller, all, last_now_)};
  if (token.empty() || GrantOf(caller.identity.role, call) != Grant::kOwn) return tried;
  bool is_wrong = false;
  for (const auto& entry : jobs_) {
    if (!TokenMatters(caller, call, entry, token)) continue;
    const bool is_looked_at = tried.may_try.ok() || IsRightAndHard(*entry.second, token);
    if (is_looked_at && entry.second->IsKnownBy(token)) return tried;
    is_wrong = true;
  }
  if (tried.may_try.ok() && is_wrong) wrong_tokens_.Note(caller, all, last_now_);
  return tried;
}

absl::Status CoordinatorState::MayCallHaving(const TokenTried& tried, const Caller& caller,
                                             Call call, const Jobs::value_type& entry) {
  const bool counts = TokenMatters(caller, call, entry, tried.token);
  const bool is_looked_at = tried.may_try.ok() || IsRightAndHard(*entry.second, tried.token);
  if (counts && !is_looked_at) return tried.may_try;
  return coordd::MayCall(caller.identity, call, ClaimOf(entry, counts ? tried.token : ""));
}

JobClaim CoordinatorState::ClaimOf(const Jobs::value_type& entry, absl::string_view token) {
  const auto& [name, job] = entry;
  return {
      .job = name, .owner = job->owner(), .knows_token = !token.empty() && job->IsKnownBy(token)};
}

// What needs no token says nothing of the one that is brought.
bool CoordinatorState::TokenMatters(const Caller& caller, Call call, const Jobs::value_type& entry,
                                    absl::string_view token) {
  return !token.empty() && GrantOf(caller.identity.role, call) == Grant::kOwn &&
         !coordd::MayCall(caller.identity, call, ClaimOf(entry, "")).ok();
}

std::string CoordinatorState::OwnerOf(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? std::string() : found->second->owner();
}

bool CoordinatorState::IsRightAndHard(const JobState& job, absl::string_view token) {
  return WrongTokens::IsHardToGuess(token) && job.IsKnownBy(token);
}

absl::Status CoordinatorState::MayTryToken(const std::shared_ptr<const Caller>& caller,
                                           const std::string& name, absl::string_view token) const {
  if (caller == nullptr) return absl::OkStatus();
  const absl::Status waits = wrong_tokens_.MayTry(*caller, name, last_now_);
  if (waits.ok()) return waits;
  const auto job = jobs_.find(name);
  return job != jobs_.end() && IsRightAndHard(*job->second, token) ? absl::OkStatus() : waits;
}

void CoordinatorState::NoteToken(const std::shared_ptr<const Caller>& caller,
                                 const std::string& job, const absl::Status& outcome) {
  if (caller == nullptr) return;
  if (absl::IsUnauthenticated(outcome)) wrong_tokens_.Note(*caller, job, last_now_);
  if (outcome.ok()) wrong_tokens_.Proved(*caller, job);
}

absl::Status CoordinatorState::DescribeTo(const Caller& caller, const v1::GetStateRequest& request,
                                          absl::Time now, v1::ServerState* state) const {
  const std::string& wanted = request.job();
  if (wanted.empty()) {
    ToldSoFar told;
    for (bool goes_on = true; goes_on;) {
      COORDD_ASSIGN_OR_RETURN(goes_on, DescribeNextTo(caller, request, now, &told, state));
    }
    return absl::OkStatus();
  }
  state->set_epoch(ToInt(epoch_));
  absl::Status refused;
  bool is_known = false;
  for (const auto& entry : jobs_) {
    // A name that begins like one's own may be another's all the same: each is asked for.
    if (!IsOrIsGroupOf(entry.first, wanted)) continue;
    is_known = true;
    const absl::Status allowed = MayCall(caller, Call::kGetState, entry.first, request.token());
    refused.Update(allowed);
    if (allowed.ok()) entry.second->Describe(now, state->add_jobs());
  }
  if (!is_known) return MayCall(caller, Call::kGetState, wanted, request.token());
  return state->jobs().empty() ? refused : absl::OkStatus();
}

absl::StatusOr<bool> CoordinatorState::DescribeNextTo(const Caller& caller,
                                                      const v1::GetStateRequest& request,
                                                      absl::Time now, ToldSoFar* told,
                                                      v1::ServerState* state) const {
  state->set_epoch(ToInt(epoch_));
  if (!std::exchange(told->has_begun, true))
    told->tried = TryForAll(caller, Call::kGetState, request.token());
  size_t bytes = 0;
  int looked_at = 0;
  for (auto it = jobs_.upper_bound(told->after); it != jobs_.end(); ++it) {
    if (bytes >= kDescribedInTurn || looked_at++ == kLookedAtInTurn) return true;
    told->after = it->first;
    const absl::Status allowed = MayCallHaving(told->tried, caller, Call::kGetState, *it);
    told->refused.Update(allowed);
    if (!allowed.ok()) continue;
    it->second->Describe(now, state->add_jobs());
    bytes += state->jobs(state->jobs_size() - 1).ByteSizeLong();
  }
  if (!state->jobs().empty()) return false;
  COORDD_RETURN_IF_ERROR(OfNoJob(caller, Call::kGetState, told->refused));
  return false;
}

// By its name, or the only one that the caller may do it to.
absl::StatusOr<JobState*> CoordinatorState::JobMeant(const DismissCall& in) const {
  const std::string& name = in.request.job();
  if (!name.empty()) {
    if (in.caller != nullptr)
      COORDD_RETURN_IF_ERROR(MayCall(*in.caller, Call::kDismiss, name, in.request.token()));
    const auto job = jobs_.find(name);
    if (job != jobs_.end()) return job->second.get();
    return absl::NotFoundError(absl::StrCat("there is no job ", OneLine(Truncated(name, 128))));
  }
  constexpr size_t kNamed = 8;
  std::vector<std::string> running;
  JobState* found = nullptr;
  absl::Status refused;
  const auto look = [&](const Jobs::value_type& entry, const absl::Status& allowed) {
    if (entry.second->ended()) return;
    if (refused.ok()) refused = allowed;
    if (!allowed.ok()) return;
    found = entry.second.get();
    running.push_back(entry.first);
  };
  if (in.caller != nullptr) {
    ForAllJobs(*in.caller, Call::kDismiss, in.request.token(), look);
  } else {
    for (const auto& entry : jobs_) look(entry, absl::OkStatus());
  }
  if (running.empty() && refused.ok()) return absl::NotFoundError("no job is running");
  if (running.empty()) return OfNoJob(*in.caller, Call::kDismiss, refused);
  if (running.size() == 1) return found;
  const size_t jobs = running.size();
  running.resize(std::min(jobs, kNamed));
  return absl::InvalidArgumentError(
      absl::StrCat(jobs, " jobs are running (", absl::StrJoin(running, ", "),
                   jobs > kNamed ? ", ..." : "", "): expected the name of one (--job)"));
}

void CoordinatorState::RefuseFirstMessage(SessionId session, const Turn& turn) {
  const absl::Status why =
      absl::InvalidArgumentError("the first message of a session must be Join");
  Event event{.kind = Event::Kind::kProtocolError};
  event.code = why.code();
  event.text = std::string(why.message());
  turn.effects.events.push_back(std::move(event));
  Close(session, why, turn.effects);
}

void CoordinatorState::OnJoin(const SessionMessage& in, const Turn& turn) {
  const v1::Join& join = in.message.join();
  const absl::Status status = Admit(in, turn);
  if (status.ok()) {
    joined_[in.session] = {join.job(), in.caller};
    return;
  }
  Close(in.session, status, turn.effects);
  if (absl::IsUnavailable(status) && FromProto(join.asking_for()) > absl::ZeroDuration()) return;
  Event event{.kind = Event::Kind::kJoinRefused};
  // Not the name as it was sent: it may be anything.
  if (jobs_.contains(join.job())) event.job = join.job();
  event.code = status.code();
  event.text = OneLine(status.message());
  event.caller = in.caller;
  turn.effects.events.push_back(std::move(event));
}

absl::Status CoordinatorState::Admit(const SessionMessage& in, const Turn& turn) {
  const v1::Join& join = in.message.join();
  if (stopping_) return absl::UnavailableError("this coordd is stopping");
  if (join.versions().protocol() != kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker speaks protocol version ", join.versions().protocol(), ", coordd ",
                     kVersion, " speaks version ", kProtocolVersion));
  }
  COORDD_RETURN_IF_ERROR(ValidateJoin(join));
  if (in.caller != nullptr) COORDD_RETURN_IF_ERROR(MayBring(*in.caller, join));
  const auto it = jobs_.find(join.job());
  if (join.has_resume() && it == jobs_.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", join.worker_id(), " cannot resume: this coordd knows no job ", join.job()));
  }
  if (it != jobs_.end()) return AdmitTo(*it->second, in, turn);
  if (jobs_.size() >= static_cast<size_t>(options_.max_jobs) && !ForgetOneEnded(turn.effects)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for job ", join.job(), ": this coordd serves ",
                     Counted(static_cast<int64_t>(jobs_.size()), "job"), " already"));
  }
  auto job = std::make_unique<JobState>(join.job(), options_, durability_, epoch_, last_forgotten_,
                                        turn.now);
  COORDD_RETURN_IF_ERROR(AdmitTo(*job, in, turn));
  jobs_[join.job()] = std::move(job);
  return absl::OkStatus();
}

absl::Status CoordinatorState::MayOwnOneMore(const std::string& owner) const {
  const int64_t running = std::count_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return entry.second->owner() == owner && !entry.second->ended();
  });
  if (running < options_.max_jobs_per_owner) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(owner, " has ", Counted(running, "job"),
                   " at this coordd already, as many as one may have "
                   "(--max-jobs-per-owner)"));
}

std::shared_ptr<ByteBudget> CoordinatorState::BudgetOf(const std::string& owner) {
  const auto known = budgets_.find(owner);
  std::shared_ptr<ByteBudget> budget = known == budgets_.end() ? nullptr : known->second.lock();
  if (budget != nullptr) return budget;
  std::erase_if(budgets_, [](const auto& entry) { return entry.second.expired(); });
  budget = std::make_shared<ByteBudget>(options_.max_bytes_per_owner, options_.max_workers_per_job);
  budgets_[owner] = budget;
  return budget;
}

// Who brings the first member of a job has made it.
absl::Status CoordinatorState::AdmitTo(JobState& job, const SessionMessage& in, const Turn& turn) {
  const v1::Join& join = in.message.join();
  COORDD_RETURN_IF_ERROR(MayTryToken(in.caller, join.job(), join.token()));
  const bool begins = job.ended();
  const std::string before = job.owner();
  const std::string owner = in.caller == nullptr ? "" : OwnerText(in.caller->identity);
  const bool is_bounded = !owner.empty() && in.caller->identity.role != Role::kOperator;
  if (begins && is_bounded) COORDD_RETURN_IF_ERROR(MayOwnOneMore(owner));
  if (begins) job.SetOwner(owner, BudgetOf(owner));
  const size_t first = turn.effects.events.size();
  const absl::Status status = job.Join(in.session, join, turn);
  NoteToken(in.caller, join.job(), status);
  for (size_t i = first; i < turn.effects.events.size(); ++i) {
    Event& event = turn.effects.events[i];
    if (event.kind == Event::Kind::kJobCreated) event.caller = in.caller;
  }
  if (begins && !status.ok()) job.SetOwner(before, BudgetOf(before));
  return status;
}

}  // namespace coordd
