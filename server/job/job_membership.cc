// Who is in a job: joining, departing, forming and ending generations.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/secret.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/gpu_report.h"
#include "server/job/job_state.h"
#include "server/model/heartbeat_pace.h"
#include "server/model/job_record.h"
#include "server/model/process_exit.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Behind a change of members on which they have agreed: for those who were asked to leave to say
// goodbye, so that they are not in the next generation, too.
constexpr absl::Duration kLeaveWindow = absl::Seconds(5);

// How an error message continues after "rank 2 (host node3, pid 4711) ". `exit`: absent if nobody
// has told.
std::string What(v1::DepartureCause cause, absl::string_view detail,
                 const std::optional<v1::ProcessExit>& exit) {
  if (cause == v1::DEPARTURE_CAUSE_CONNECTION_LOST && exit.has_value()) return LossText(*exit);
  switch (cause) {
    case v1::DEPARTURE_CAUSE_LEFT:
      return absl::StrCat("left", detail.empty() ? "" : ": ", detail);
    case v1::DEPARTURE_CAUSE_CONNECTION_LOST:
      return absl::StrCat("was lost: its connection closed without a goodbye",
                          detail.empty() ? "" : absl::StrCat(" (", detail, ")"));
    case v1::DEPARTURE_CAUSE_EVICTED:
    case v1::DEPARTURE_CAUSE_DRAINED:
      return std::string(detail);  // it says who wanted that
    case v1::DEPARTURE_CAUSE_PROGRAM_FAILED:
      return absl::StrCat("failed: ", detail);
    case v1::DEPARTURE_CAUSE_PROTOCOL_ERROR:
      return absl::StrCat("was expelled, it broke the protocol: ", detail);
    default:
      return absl::StrCat("was lost: ", detail);
  }
}

absl::Status CheckSameLimit(absl::string_view what, int32_t given, int32_t agreed,
                            const std::string& worker) {
  if (given == 0 || given == agreed) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("worker ", worker, " asks for ", what, " ", given, ", the job has ", agreed));
}

}  // namespace

absl::Status JobState::Join(SessionId session, const v1::Join& join, const Turn& turn) {
  if (HasLostItsStream(join, turn.now)) {
    Suspend(absl::StrCat("worker ", join.worker_id(), " had lost its connection"), turn);
  }
  const bool is_member = resume_.has_value() && resume_->Find(join.worker_id()).has_value();
  if (resume_.has_value() && (is_member || join.has_resume())) {
    return JoinToResume(session, join, turn);
  }
  if (join.has_resume()) return RefuseResume(join);
  ReplaceWaiting(join, turn);
  COORDD_RETURN_IF_ERROR(MayJoin(join, turn.now));
  if (ended()) {
    COORDD_RETURN_IF_ERROR(Start(join, turn.now));
    ForgetEarlierRun(join);
    Emit(Event::Kind::kJobCreated,
         absl::StrCat("min_workers ", rendezvous_.options().min_workers, ", max_workers ",
                      rendezvous_.options().max_workers),
         turn.effects);
  }
  COORDD_RETURN_IF_ERROR(rendezvous_.Join(session, turn.now));
  Worker worker;
  worker.join = join;
  worker.join.clear_token();
  worker.last_heard = turn.now;
  Emit(Event::Kind::kWorkerJoined,
       absl::StrCat(Who(worker), " joined: ", rendezvous_.Reason(turn.now)), turn.effects);
  workers_.Add(session, std::move(worker));
  news_.Changed();
  // A process that starts again under its old id replaces itself, once its generation is over.
  if (const std::optional<SessionId> old = OldIncarnation(join.worker_id())) {
    const std::string detail = "a newer process joined with its worker id";
    Depart(*old, v1::DEPARTURE_CAUSE_EVICTED, "was replaced: " + detail, turn);
    turn.effects.outgoing.push_back(CloseSession{*old, absl::FailedPreconditionError(detail)});
  }
  return absl::OkStatus();
}

absl::Status JobState::MayJoin(const v1::Join& join, absl::Time now) {
  if (!ended()) {
    COORDD_RETURN_IF_ERROR(CheckAgreement(join));
    if (!reforming_.none_follows().empty()) return absl::FailedPreconditionError(NobodyIsTaken());
    COORDD_RETURN_IF_ERROR(drains_.CheckHost(join.host()));
  }
  absl::Status fits = workers_.Check(join);
  if (fits.ok() && !ended()) fits = ExplainFull(join, rendezvous_.CheckRoom());
  if (fits.ok() || !join.has_asking_for()) return fits;
  // Who is started again at once asks before coordd has noticed that its predecessor is dead.
  const absl::Time since = now - std::max(FromProto(join.asking_for()), absl::ZeroDuration());
  const bool may_be_gone = absl::c_any_of(
      workers_, [&](const auto& entry) { return !HasLivedSince(entry.second, since, now); });
  return may_be_gone ? absl::UnavailableError(fits.message()) : fits;
}

// What a worker starts has its environment, and so its place.
absl::Status JobState::ExplainFull(const v1::Join& join, absl::Status room) const {
  if (room.ok()) return room;
  for (const auto& [session, worker] : workers_) {
    const v1::Join& other = worker.join;
    const bool is_of_its_launch = !join.launch().empty() && other.launch() == join.launch();
    const bool has_its_rank = join.launch().empty() && join.launcher_rank() >= 0 &&
                              other.launcher_rank() == join.launcher_rank() &&
                              other.host().node_id() == join.host().node_id();
    if (!is_of_its_launch && !has_its_rank) continue;
    return absl::Status(
        room.code(),
        absl::StrCat(room.message(), "; this process (pid ", join.pid(), ") has the variables of ",
                     Who(worker),
                     ": is it a child of that worker? A program that is to run apart from its "
                     "parent's job is started without its COORDD_ variables (and its launcher's: "
                     "COORDD_LAUNCHER=none)"));
  }
  return room;
}

// A single heartbeat may be older than it: what a process has sent arrives, and then its end.
bool JobState::HasLivedSince(const Worker& worker, absl::Time since, absl::Time now) const {
  if (worker.departs()) return false;
  return worker.heartbeat_before > since || now - since > options_.lease;
}

// One that waits has lost its connection, and is back before coordd has noticed that. (Or a Join of
// the lost one has come late: then whoever waits comes again.)
void JobState::ReplaceWaiting(const v1::Join& join, const Turn& turn) {
  const auto session = SessionOf(join.worker_id());
  if (!session.has_value() || !token_.Check(join.token()).ok()) return;
  const Worker& worker = workers_.at(*session);
  const bool is_same =
      worker.join.pid() == join.pid() && worker.join.host().node_id() == join.host().node_id();
  if (worker.IsMember() || !is_same) return;
  const std::string detail = "has connected again while it waited";
  Depart(*session, v1::DEPARTURE_CAUSE_CONNECTION_LOST, detail, turn);
  turn.effects.outgoing.push_back(CloseSession{*session, absl::UnavailableError(detail)});
}

// The first member's word: what the job is from now on.
absl::Status JobState::Start(const v1::Join& join, absl::Time now) {
  RendezvousOptions options;
  const v1::JobLimits& limits = join.limits();
  options.min_workers = limits.min_workers() > 0 ? limits.min_workers() : options_.min_workers;
  options.max_workers = limits.max_workers() > 0 ? limits.max_workers() : options_.max_workers;
  options.max_workers_of_server = options_.max_workers_per_job;
  options.settling_window =
      limits.has_settling_window() ? FromProto(limits.settling_window()) : options_.settling_window;
  options.settling_window_after_loss = options_.settling_window_after_loss;
  options.lease = options_.lease;
  reforming_.Begin({.on_failure = FromProto(join.on_failure()),
                    .report_window = options_.lease,
                    .timeout = options_.reform_timeout,
                    .reset_limit = options_.reset_limit},
                   /*same_run=*/token_.Is(join.token()));
  if (options.max_workers > 0 && options.min_workers > options.max_workers) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", name_, ": min_workers ", options.min_workers,
                     " is more than max_workers ", options.max_workers));
  }
  const int32_t needed = std::max(options.min_workers, options.max_workers);
  if (needed > options_.max_workers_per_job) {
    return absl::FailedPreconditionError(absl::StrCat("job ", name_, " asks for ", needed,
                                                      " workers, this coordd takes at most ",
                                                      options_.max_workers_per_job, " per job"));
  }
  COORDD_CHECK(workers_.empty() && !generation_.has_value());
  token_.Begin(join.token());
  rendezvous_ = RendezvousState(options, rendezvous_.proposed(), now);
  started_ = true;
  forming_.Begin();
  return absl::OkStatus();
}

absl::Status JobState::CheckAgreement(const v1::Join& join) {
  const absl::Status token = token_.Check(join.token());
  // Most often a second run of the same script: its launcher has made a token of its own.
  if (!token.ok() && !join.token().empty()) {
    return absl::UnauthenticatedError(absl::StrCat(
        "another run at this coordd is called job ", name_,
        ", and its token is not this worker's: expected another name (coordrun --job NAME, "
        "COORDD_JOB_ID), or the token of that run (COORDD_TOKEN_FILE)"));
  }
  COORDD_RETURN_IF_ERROR(token);
  const OnFailure on_failure = FromProto(join.on_failure());
  if (on_failure != reforming_.on_failure()) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", join.worker_id(), " says on_failure ", Name(on_failure),
                     ", the job's first worker said ", Name(reforming_.on_failure())));
  }
  const v1::JobLimits& limits = join.limits();
  const RendezvousOptions& agreed = rendezvous_.options();
  COORDD_RETURN_IF_ERROR(
      CheckSameLimit("min_workers", limits.min_workers(), agreed.min_workers, join.worker_id()));
  COORDD_RETURN_IF_ERROR(
      CheckSameLimit("max_workers", limits.max_workers(), agreed.max_workers, join.worker_id()));
  if (!limits.has_settling_window()) return absl::OkStatus();
  const absl::Duration window = FromProto(limits.settling_window());
  if (window == agreed.settling_window) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "worker ", join.worker_id(), " asks for a settling window of ", absl::FormatDuration(window),
      ", the job has ", absl::FormatDuration(agreed.settling_window)));
}

void JobState::Depart(SessionId session, v1::DepartureCause cause, absl::string_view detail,
                      const Turn& turn) {
  COORDD_CHECK(Has(session));
  if (IsReturned(workers_.at(session))) {  // it may come again
    DropReturned(session);
    if (resume_->complete()) FinishResume(turn);
    return;
  }
  const Worker worker = workers_.Take(session);
  const bool is_member = worker.generation != Generation{0};
  std::string what = OneLine(What(cause, detail, worker.exit));
  if (DamageOf(cause) == Damage::kLost)
    absl::StrAppend(&what, GpuReport(worker.heartbeat.gpu_health()));
  what = Truncated(what, kMaxReasonBytes);

  v1::Departure departure;
  departure.set_rank(is_member ? ToInt(worker.place.rank) : -1);
  departure.set_worker_id(worker.join.worker_id());
  departure.set_hostname(worker.join.host().hostname());
  departure.set_pid(worker.join.pid());
  departure.set_cause(cause);
  departure.set_detail(what);
  departure.set_launch(worker.join.launch());
  if (cause == v1::DEPARTURE_CAUSE_PROGRAM_FAILED) departure.set_failure(std::string(detail));
  if (worker.exit.has_value()) *departure.mutable_exit() = *worker.exit;
  departure.set_drained(drains_.NoteGone(worker.join.worker_id()) ||
                        cause == v1::DEPARTURE_CAUSE_DRAINED);
  AddDeparture(history_.departures, departure);
  Emit(Event::Kind::kWorkerDeparted, absl::StrCat(Who(worker), " ", what), turn.effects, cause);

  // A member of a damaged generation no longer counts for admission, and a newer process may have
  // its id by now; unless it would have been in the next one.
  if (!is_member || damage() == Damage::kNone || reforming_.open()) workers_.Release(worker);
  if (generation_.has_value()) generation_->DropOld(worker.join.worker_id(), session);
  rendezvous_.Remove(session, turn.now);
  if (is_member) {
    trace_.OnGone(worker.place.rank, absl::StrCat(Who(worker), " ", what), turn);
    generation_->AddDeparted(departure);
    EndGeneration(DamageOf(cause), absl::StrCat(Who(worker), " ", what), turn);
  }
  news_.Changed();
  NoteGone(turn);
}

// Who was asked to go goes as the members agree on: others follow, where any do.
Damage JobState::DamageOf(v1::DepartureCause cause) const {
  const bool asked =
      cause == v1::DEPARTURE_CAUSE_DRAINED && reforming_.wanted() && damage() == Damage::kNone;
  if (asked) return Damage::kAsked;
  const bool said_goodbye =
      cause == v1::DEPARTURE_CAUSE_LEFT || cause == v1::DEPARTURE_CAUSE_DRAINED;
  return said_goodbye ? Damage::kLeft : Damage::kLost;
}

// Members are told when the generation ends and when that gets worse, not of every departure: that
// would be n messages to n workers at the end of every job.
void JobState::EndGeneration(Damage damage, const std::string& reason, const Turn& turn) {
  const bool was_intact = generation_->intact();
  if (!generation_->Worsen(damage)) return;
  if (was_intact) {
    // What was asked for is no failure, however often.
    const bool explained = damage == Damage::kLost || damage == Damage::kAsked;
    if (reforming_.Broken(reason, explained, damage == Damage::kLeft, turn.now))
      rendezvous_.ExpectRejoins(/*only=*/reforming_.on_failure() == OnFailure::kContinue);
  } else if (damage == Damage::kLost) {
    reforming_.Lost();
    // Not all may have come to the point at which it was asked for: whoever is new waits for
    // another.
    if (reforming_.open() && reforming_.on_failure() == OnFailure::kContinue)
      rendezvous_.ExpectRejoins(/*only=*/true);
  }
  const bool last = !reforming_.none_follows().empty();
  generation_->Explain(
      Truncated(OneLine(absl::StrCat(
                    "generation ", ToInt(generation()), " ended: ", reason,
                    last ? absl::StrCat("; none follows: ", reforming_.none_follows()) : "")),
                kMaxReasonBytes));
  std::vector<SessionId> members;
  for (const auto& [session, worker] : workers_) {
    if (worker.generation == Generation{0}) continue;
    members.push_back(session);
    if (!was_intact || reforming_.open()) continue;
    workers_.Release(worker);
    generation_->KeepOld(worker.join.worker_id(), session);
  }
  if (was_intact && damage == Damage::kAsked) drains_.AwaitUntil(turn.now + kLeaveWindow);
  if (was_intact) {
    rendezvous_.Break(turn.now);
    generation_->state().End(turn.effects);
    Emit(Event::Kind::kGenerationEnded, generation_->reason(), turn.effects);
  }
  // After a goodbye, batches that were planned may still need addresses from the store.
  if (generation_->damage() != Damage::kLeft) kv_.Close(generation(), turn.effects);
  if (members.empty()) return;
  std::shared_ptr<v1::CoordinatorMessage> message = NewMessage(generation());
  *message->mutable_abort() = generation_->AbortOf(reforming_.open());
  turn.effects.outgoing.push_back(Deliver{std::move(members), std::move(message)});
  trace_.EndEarly(generation_->reason(), turn);
}

void JobState::ForgetGeneration() {
  if (!generation_.has_value()) return;
  history_.executed.EndGeneration(PlannedInGeneration());
  generation_.reset();
}

// The last member, or the last worker, may just have gone.
void JobState::NoteGone(const Turn& turn) {
  if (generation_.has_value() && rendezvous_.members() == 0) {
    kv_.Close(generation(), turn.effects);
    if (reforming_.open() && generation_->knows_sets())
      left_sets_ = generation_->state().LeftSets();
    ForgetGeneration();
    if (reforming_.open()) reforming_.Gathering(turn.now);
    if (!reforming_.none_follows().empty() && DismissNewcomers(turn)) return;
  }
  if (rendezvous_.phase() != RendezvousPhase::kEnded) return;
  reforming_.Ended();
  left_sets_.reset();
  FailDismissals(turn.effects);
  kv_.Clear(absl::NotFoundError(absl::StrCat("job ", name_, " has ended")), turn.effects);
  news_.Forget();
  Emit(Event::Kind::kJobEnded, rendezvous_.Reason(turn.now), turn.effects);
  PersistEnd(turn.effects);
}

void JobState::Form(const std::vector<SessionId>& sessions, const Turn& turn) {
  NoteLostState(sessions, turn.effects);
  std::vector<TopologyMember> members;
  members.reserve(sessions.size());
  for (SessionId session : sessions) {
    members.push_back(MemberOf(session));
  }
  const Topology topology = OrderRanks(members);
  const Inheritance inherited{Repairs(sessions), NextSets(sessions, topology)};
  const GenerationState::Identity identity = IdentityOf(sessions);
  std::vector<SessionId> by_rank;
  by_rank.reserve(sessions.size());
  for (const Place& place : topology.places) {
    const SessionId session = sessions[topology.member_of_rank[by_rank.size()]];
    by_rank.push_back(session);
    Worker& worker = workers_.at(session);
    worker.place = place;
    worker.generation = generation();
    worker.previous_rank = -1;
    worker.report.Clear();
    worker.device_use.reset();
    worker.stack_asked = false;
    worker.stack.clear();
    worker.last_heard = turn.now;  // its lease starts here
    DeliverMembership(session, worker, topology, inherited, identity.slots, turn.effects);
  }
  DeliverSets(by_rank, inherited, turn.effects);
  left_sets_.reset();
  if (drains_.ForgetGone()) PersistDrains(CallId{0}, turn.effects);
  reforming_.Formed(turn.now);
  COORDD_CHECK(by_rank.size() == sessions.size() && !generation_.has_value());
  generation_.emplace(identity, options_, std::move(by_rank), /*knows_sets=*/true);
  generation_->state().TakeOver(inherited.process_sets);
  kv_.Open(generation());
  news_.TellMembers(0);
  news_.Forget();
  if (rendezvous_.waiting() > 0) news_.Changed();  // they came while this was being stored
  int32_t nodes = 0;
  for (const NodeRun& run : topology.runs) nodes += run.nodes;
  Emit(Event::Kind::kGenerationFormed,
       absl::StrCat("generation ", ToInt(generation()), " formed: ", sessions.size(), " ranks on ",
                    nodes, nodes == 1 ? " node" : " nodes"),
       turn.effects);
}

// The generation of these members: it does what all of them can.
GenerationState::Identity JobState::IdentityOf(const std::vector<SessionId>& members) const {
  GenerationState::Identity identity{name_, epoch_, generation(), true, true, options_.slots};
  for (SessionId session : members) {
    const v1::Join& join = workers_.at(session).join;
    identity.schedules = identity.schedules && join.executes_schedules();
    identity.device_schedules = identity.device_schedules && join.schedules_devices();
    if (!join.knows_slots()) identity.slots = 0;
  }
  return identity;
}

void JobState::DeliverMembership(SessionId session, const Worker& worker, const Topology& topology,
                                 const Inheritance& inherited, int64_t slots,
                                 Effects& effects) const {
  std::shared_ptr<v1::CoordinatorMessage> message = NewMessage(generation());
  v1::Membership* membership = message->mutable_membership();
  membership->mutable_repairs()->Assign(inherited.repairs.begin(), inherited.repairs.end());
  membership->set_process_sets_follow(inherited.has_sets());
  membership->set_rank(ToInt(worker.place.rank));
  membership->set_size(worker.place.size);
  membership->set_local_rank(worker.place.local_rank);
  membership->set_local_size(worker.place.local_size);
  membership->set_cross_rank(worker.place.cross_rank);
  membership->set_cross_size(worker.place.cross_size);
  for (const NodeRun& run : topology.runs) {
    v1::NodeRun* node_run = membership->add_nodes();
    node_run->set_nodes(run.nodes);
    node_run->set_ranks_per_node(run.ranks_per_node);
  }
  membership->set_session(ToInt(session));
  ToProto(HeartbeatInterval(options_, worker.place.size), membership->mutable_heartbeat_interval());
  ToProto(options_.lease, membership->mutable_lease());
  membership->set_store_prefix(KvState::GenerationPrefix(generation()));
  membership->set_job_min_workers(rendezvous_.options().min_workers);
  membership->set_job_max_workers(rendezvous_.options().max_workers);
  membership->set_slots(slots);
  if (durability_.outlives) membership->set_cluster_id(durability_.cluster_id);
  effects.outgoing.push_back(Deliver{{session}, std::move(message)});
}

std::string JobState::Who(const Worker& worker) const {
  const std::string where =
      absl::StrCat(" (host ", worker.join.host().hostname(), ", pid ", worker.join.pid(), ")");
  return worker.generation == Generation{0}
             ? absl::StrCat("worker ", worker.join.worker_id(), where)
             : absl::StrCat("rank ", ToInt(worker.place.rank), where);
}

}  // namespace coordd
