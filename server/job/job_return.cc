#include "server/job/job_return.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/duration_text.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/departure.h"
#include "server/model/process_exit.h"
#include "server/model/validate_message.h"

namespace coordd {

namespace {

// Who has not heard of its generation lacks nothing: its members say nothing without it.
constexpr size_t kMissedOfNew = 1024;

}  // namespace

// All that was said: it may be some hundred MiB, of small messages.
class JobReturn::Dropped final : public Remains {
 public:
  Dropped(ResumeState state, std::shared_ptr<GenerationState> restored, BudgetShare share)
      : state_(std::move(state)), restored_(std::move(restored)), share_(std::move(share)) {}

  int64_t Free(int64_t most) override {
    int64_t freed = restored_ == nullptr ? 0 : restored_->Free(most);
    if (freed < most) freed += state_.Free(most - freed);
    if (freed < most) share_.Set(0);
    return freed;
  }

 private:
  ResumeState state_;
  const std::shared_ptr<GenerationState> restored_;  // a part of it; null: nothing
  BudgetShare share_;
};

class JobReturn::EndedMerge final : public Remains {
 public:
  explicit EndedMerge(std::unique_ptr<ReportMerge> merge) : merge_(std::move(merge)) {}

  int64_t Free(int64_t most) override { return merge_->Free(most); }

 private:
  const std::unique_ptr<ReportMerge> merge_;
};

std::unique_ptr<Remains> JobReturn::Abandon() {
  if (!under_way()) return nullptr;
  std::shared_ptr<GenerationState> restored;
  if (whole_.has_value()) restored = std::move(whole_->state);
  telling_.reset();
  whole_.reset();
  has_told_ = false;
  return std::make_unique<Dropped>(*std::exchange(state_, std::nullopt), std::move(restored),
                                   words_.Split(words_.bytes()));
}

void JobReturn::Begin(const v1::JobRecord& record, std::shared_ptr<const FoundSets> found,
                      absl::string_view after, absl::Time now) {
  state_.emplace(record, now + options_.lease + options_.resume_grace,
                 ResumeBeginning{now, std::string(after)}, std::move(found));
}

void JobReturn::Forgive(absl::Duration gap, absl::Time now) {
  excused_until_ = now + options_.lease;
  // Whoever had come back may have lost patience again.
  if (under_way()) state_->Forgive(gap, now + options_.resume_grace);
}

void JobReturn::AskAgain(absl::Time now) {
  state_->Forgive(absl::ZeroDuration(), now + options_.lease + options_.resume_grace);
}

bool JobReturn::IsOfMember(const v1::Join& join, const v1::JobRecord& record, Rank rank) const {
  const auto is_at = [&](int32_t at) {
    return at < record.members_size() && record.members(at).worker_id() == join.worker_id();
  };
  // A record is large, and whoever has a token may ask as often as he likes.
  int32_t at = ToInt(rank);
  if (!is_at(at))
    for (at = 0; at < record.members_size() && !is_at(at);) ++at;
  const bool is_in = at < record.members_size();
  if (!join.has_resume()) return is_in && record.members(at).pid() == join.pid();
  return ResumeState::CheckMember(join, durability_.cluster_id, messages_.epoch(), record,
                                  is_in ? std::optional<Rank>(Rank{at}) : std::nullopt)
      .ok();
}

std::string JobReturn::Who(Rank rank) const {
  const v1::MemberRecord& member = state_->member(rank);
  return absl::StrCat("rank ", ToInt(rank), " (host ", member.hostname(), ", pid ", member.pid(),
                      ")");
}

v1::Departure JobReturn::DepartureOf(Rank rank, v1::DepartureCause cause,
                                     absl::string_view what) const {
  const v1::MemberRecord& member = state_->member(rank);
  v1::Departure departure;
  departure.set_rank(ToInt(rank));
  departure.set_worker_id(member.worker_id());
  departure.set_hostname(member.hostname());
  departure.set_pid(member.pid());
  departure.set_cause(cause);
  departure.set_detail(Truncated(OneLine(what), kMaxReasonBytes));
  return departure;
}

std::optional<ReturnFailure> JobReturn::Replaced(const v1::Join& join) const {
  if (join.has_resume()) return std::nullopt;
  const Rank rank = *state_->Find(join.worker_id());
  if (state_->member(rank).pid() == join.pid()) return std::nullopt;
  const std::string what = absl::StrCat("was replaced: a newer process, pid ", join.pid(),
                                        ", joined with its worker id");
  return ReturnFailure{Damage::kLost,
                       absl::StrCat("rank ", ToInt(rank), " ", what),
                       {DepartureOf(rank, v1::DEPARTURE_CAUSE_EVICTED, what)}};
}

absl::Status JobReturn::Join(SessionId session, const v1::Join& join, const Turn& turn) {
  if (!join.has_resume()) {
    const Rank rank = *state_->Find(join.worker_id());
    COORDD_RETURN_IF_ERROR(state_->CheckMayReturn(rank));
    // It has not heard of the generation: it is told again.
    Add(session, join, rank, turn);
    state_->Came(rank, session, std::nullopt);
    return absl::OkStatus();
  }
  COORDD_ASSIGN_OR_RETURN(const Rank rank,
                          state_->Check(join, durability_.cluster_id, messages_.epoch()));
  COORDD_RETURN_IF_ERROR(state_->CheckMayReturn(rank));
  Add(session, join, rank, turn);
  if (join.resume().generation() == ToInt(state_->generation())) {
    state_->Came(rank, session, join.resume().position());
  } else {
    // It had reported what became of its generation, and has not heard of this one.
    state_->Came(rank, session, std::nullopt);
  }
  return absl::OkStatus();
}

void JobReturn::Add(SessionId session, const v1::Join& join, Rank rank, const Turn& turn) {
  // Of the same process, and its end has not been seen. Which of the two is the newer one nobody
  // can tell: on a stream that was given up a Join may come late. Then the worker comes again.
  if (const auto earlier = state_->session_of(rank)) {
    Drop(*earlier);
    turn.effects.outgoing.push_back(
        CloseSession{*earlier, absl::UnavailableError("another stream of this worker has come")});
  }
  JobWorker worker;
  worker.join = join;
  worker.join.clear_token();
  worker.join.clear_resume();
  worker.generation = state_->generation();
  worker.place.rank = rank;
  worker.last_heard = turn.now;
  workers_.Add(session, std::move(worker));
}

void JobReturn::Drop(SessionId session) {
  state_->Gone(workers_.at(session).place.rank);
  words_.Set(state_->extra_bytes());
  workers_.Remove(session);
}

bool JobReturn::IsUnaware(const JobWorker& worker, const v1::WorkerMessage& message) const {
  return message.generation() != ToInt(state_->generation()) || state_->is_new(worker.place.rank);
}

absl::StatusOr<std::optional<ReturnFailure>> JobReturn::OnMessage(
    SessionId session, const v1::WorkerMessage& message, const std::optional<std::string>& drained,
    Effects& effects) {
  switch (message.body_case()) {
    case v1::WorkerMessage::kResumeReport:
      COORDD_RETURN_IF_ERROR(OnReport(workers_.at(session).place.rank, message.resume_report()));
      return std::nullopt;
    case v1::WorkerMessage::kLeave:
      COORDD_RETURN_IF_ERROR(ValidateLeave(message.leave()));
      return OnLeave(session, message.leave(), drained, effects);
    case v1::WorkerMessage::kHeartbeat:
      return std::nullopt;  // its lease begins when all are back
    default:
      return absl::InvalidArgumentError(
          "a message before Resumed that is no ResumeReport and no Leave");
  }
}

absl::Status JobReturn::OnReport(Rank rank, const v1::ResumeReport& part) {
  COORDD_RETURN_IF_ERROR(state_->Report(rank, part));
  words_.Set(state_->extra_bytes());
  if (words_.HasRoomFor(0)) return absl::OkStatus();
  return NoRoomFor("this ResumeReport", state_->report_bytes(rank), words_);
}

// Who has left since it was asked to: the others are waited for, and for them it is a generation
// that is over, and another one follows. Who has failed is one that will not come back.
std::optional<ReturnFailure> JobReturn::OnLeave(SessionId session, const v1::Leave& leave,
                                                const std::optional<std::string>& drained,
                                                Effects& effects) {
  const JobWorker& worker = workers_.at(session);
  const Rank rank = worker.place.rank;
  const bool failed = !leave.failure().empty();
  const bool left = !failed && !drained.has_value();
  const v1::DepartureCause cause = failed ? v1::DEPARTURE_CAUSE_PROGRAM_FAILED
                                   : left ? v1::DEPARTURE_CAUSE_LEFT
                                          : v1::DEPARTURE_CAUSE_DRAINED;
  const std::string what = DepartureText(cause, failed ? leave.failure()
                                                : left ? leave.reason()
                                                       : *drained);
  const std::string reason = absl::StrCat(coordd::Who(worker), " ", what);
  v1::Departure departure = DepartureOf(rank, cause, what);
  if (!left) departure.set_launch(worker.join.launch());
  if (failed) departure.set_failure(leave.failure());
  Drop(session);
  if (failed) state_->NoteLost(departure, reason);
  if (drained.has_value() && !failed) state_->Left(rank, departure, reason);
  effects.outgoing.push_back(CloseSession{session, absl::OkStatus()});
  if (!left) return std::nullopt;
  return ReturnFailure{Damage::kLeft, reason, {departure}};
}

void JobReturn::NoteDeparted(const std::set<std::string>& members, const JobHistory& history,
                             const std::string& reason) {
  for (int32_t rank = 0; rank < state_->size(); ++rank) {
    const std::string& id = state_->member(Rank{rank}).worker_id();
    if (members.contains(id)) continue;
    v1::Departure gone =
        DepartureOf(Rank{rank}, v1::DEPARTURE_CAUSE_CONNECTION_LOST, "was lost some time ago");
    for (const v1::Departure& departure : history.departures())
      if (departure.worker_id() == id && departure.rank() <= rank) gone = departure;
    gone.set_rank(rank);
    state_->NoteLost(gone, reason);
  }
}

bool JobReturn::NoteExit(const v1::LaunchedExit& in) {
  if (!under_way()) return false;
  if (in.launch().empty() || EndedWell(in.exit()) || in.exit().unreachable()) return false;
  const auto rank = state_->FindLaunch(in.launch());
  if (!rank.has_value()) return false;
  const std::string what = LossText(in.exit());
  v1::Departure departure = DepartureOf(*rank, v1::DEPARTURE_CAUSE_CONNECTION_LOST, what);
  departure.set_launch(in.launch());
  *departure.mutable_exit() = in.exit();
  state_->NoteLost(departure, absl::StrCat(Who(*rank), " ", what));
  return true;
}

std::optional<ReturnFailure> JobReturn::Overdue(const Turn& turn) {
  if (merging() || turn.now < NextDeadline()) return std::nullopt;
  std::vector<v1::Departure> departures;
  size_t known = 0;  // of them, those who have said goodbye
  std::string who;
  const std::string in_time =
      absl::StrCat(" within ", DurationText(turn.now - state_->beginning().at), " after ",
                   state_->beginning().after);
  const std::string what = absl::StrCat("was lost: it did not come back", in_time);
  for (Rank rank : state_->Missing()) {
    if (const v1::Departure* left = state_->left(rank)) {
      departures.push_back(*left);
      ++known;
      continue;
    }
    departures.push_back(DepartureOf(rank, v1::DEPARTURE_CAUSE_LEASE_EXPIRED, what));
    if (who.empty()) who = Who(rank);
    // It has come, and has not said where it is: all are told that it is lost, and so it is.
    if (const auto session = state_->session_of(rank)) {
      Drop(*session);
      turn.effects.outgoing.push_back(CloseSession{
          *session, absl::FailedPreconditionError(absl::StrCat(Who(rank), " ", what))});
    }
  }
  const size_t more = departures.size() - known - 1;
  const std::string reason =
      more == 0
          ? absl::StrCat(who, " ", what)
          : absl::StrCat(who, " and ", more, " more were lost: they did not come back", in_time);
  return ReturnFailure{Damage::kLost, reason, std::move(departures)};
}

std::optional<ReturnFailure> JobReturn::Over() const {
  const std::optional<std::string>& over = state_->over();
  if (!over.has_value()) return std::nullopt;
  absl::string_view reason = *over;
  absl::ConsumePrefix(&reason,
                      absl::StrCat("generation ", ToInt(state_->generation()), " ended: "));
  std::vector<v1::Departure> lost = state_->Lost();
  const Damage damage = lost.empty() ? Damage::kCollectiveFailed : Damage::kLost;
  return ReturnFailure{damage, std::string(reason), std::move(lost)};
}

ReturnFailure JobReturn::CannotGoOn(const absl::Status& why) const {
  return {Damage::kCollectiveFailed, absl::StrCat("it could not go on after ",
                                                  state_->beginning().after, ": ", why.message())};
}

std::vector<SessionId> JobReturn::ByRank() const {
  std::vector<SessionId> by_rank;
  for (int32_t rank = 0; rank < state_->size(); ++rank)
    by_rank.push_back(*state_->session_of(Rank{rank}));
  return by_rank;
}

std::optional<absl::StatusOr<WholeReturn>> JobReturn::Whole(int64_t entries, const Turn& turn) {
  BuryEnded(turn);
  if (!whole_.has_value()) {
    auto resumed = state_->Merge(entries);
    if (!resumed.has_value()) return std::nullopt;
    absl::StatusOr<Topology> topology = TopologyOfRanks();
    NoteAllHeard(topology, turn.now);
    if (!resumed->ok()) return resumed->status();
    if (!topology.ok()) return topology.status();
    const std::vector<SessionId> by_rank = ByRank();
    whole_ = WholeReturn{**std::move(resumed), *std::move(topology),
                         std::make_shared<GenerationState>(
                             messages_.IdentityOf(state_->generation(), by_rank, workers_, budget_),
                             options_, by_rank)};
  }
  if (!telling_.has_value()) {
    const absl::StatusOr<bool> done = whole_->state->Restore(whole_->resumed, entries, turn.now);
    if (!done.ok()) return done.status();
    if (!*done) return std::nullopt;
    COORDD_RETURN_IF_ERROR(CheckNew(whole_->resumed.missed));
    head_ = messages_.New(state_->generation());
    telling_.emplace(whole_->resumed.missed, ToTell(/*is_new=*/false), *head_);
  }
  const bool told_all = telling_->Continue(entries, turn.effects);
  has_told_ = has_told_ || telling_->has_told();
  if (!told_all) return std::nullopt;
  NoteAllHeard(whole_->topology, turn.now);
  telling_.reset();
  WholeReturn whole = *std::move(whole_);
  whole_.reset();
  return whole;
}

// The sessions by rank of those who have not heard of the generation, or of the others; 0: not it.
std::vector<SessionId> JobReturn::ToTell(bool is_new) const {
  std::vector<SessionId> by_rank = ByRank();
  for (size_t rank = 0; rank < by_rank.size(); ++rank)
    if (state_->is_new(Rank{static_cast<int32_t>(rank)}) != is_new) by_rank[rank] = SessionId{0};
  return by_rank;
}

// What they lack is told in the turn in which they hear of the generation, since they say something
// in it at once.
absl::Status JobReturn::CheckNew(const MissedMessages& missed) const {
  size_t count = 0;
  for (size_t rank = 0; rank < missed.size(); ++rank) {
    if (!state_->is_new(Rank{static_cast<int32_t>(rank)})) continue;
    count += missed[rank].size();
    if (count > kMissedOfNew)
      return absl::InternalError(absl::StrCat("rank ", rank, " has not heard of the generation, ",
                                              "and others have ", missed[rank].size(),
                                              " messages to it"));
  }
  return absl::OkStatus();
}

void JobReturn::BuryEnded(const Turn& turn) {
  if (!merging()) telling_.reset();
  if (whole_.has_value() && !merging())
    CurrentGeneration(std::exchange(whole_, std::nullopt)->state, /*knows_sets=*/true).Bury(turn);
  if (!under_way()) return;
  while (auto merge = state_->TakeEnded())
    turn.Bury(std::make_unique<EndedMerge>(std::move(merge)));
}

// They have their places, as far as these are known, and are heard from now on.
void JobReturn::NoteAllHeard(const absl::StatusOr<Topology>& topology, absl::Time now) {
  const std::vector<SessionId> by_rank = ByRank();
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    JobWorker& worker = workers_.at(by_rank[rank]);
    if (topology.ok()) worker.place = topology->places[rank];
    worker.last_heard = now;
  }
}

absl::StatusOr<Topology> JobReturn::TopologyOfRanks() const {
  std::vector<TopologyMember> members;
  for (int32_t rank = 0; rank < state_->size(); ++rank) {
    const v1::MemberRecord& stored = state_->member(Rank{rank});
    TopologyMember member;
    member.worker_id = stored.worker_id();
    member.node_id = stored.node_id();
    member.labels.assign(stored.topology().begin(), stored.topology().end());
    member.previous_rank = rank;  // which it keeps, whatever its labels are
    members.push_back(std::move(member));
  }
  Topology topology = OrderRanks(members);
  for (size_t rank = 0; rank < topology.member_of_rank.size(); ++rank) {
    if (topology.member_of_rank[rank] == rank) continue;
    return absl::InternalError("the ranks of a node were not consecutive in what was stored");
  }
  return topology;
}

ResumeBeginning JobReturn::GoOn(WholeReturn& whole, const Turn& turn) {
  const GenerationState& state = *whole.state;
  const std::vector<SessionId> by_rank = ByRank();
  const ResumeState& back = *state_;
  const ResumeBeginning beginning = back.beginning();
  std::vector<SessionId> is_new;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (!back.is_new(Rank{static_cast<int32_t>(rank)})) continue;
    is_new.push_back(by_rank[rank]);
    messages_.Membership(by_rank[rank], whole.topology.places[rank], whole.topology, back.record(),
                         back.found(), state.identity().slots, turn.effects);
  }
  back.found().Tell(is_new, turn.effects);
  MissedTelling(whole.resumed.missed, ToTell(/*is_new=*/true), *head_)
      .Continue(std::numeric_limits<int64_t>::max(), turn.effects);
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (!back.is_new(Rank{static_cast<int32_t>(rank)}))
      messages_.Resumed(by_rank[rank], whole.resumed, state, turn.effects);
  }
  turn.Bury(Abandon());
  return beginning;
}

JobReturn::Present JobReturn::End(const ReturnFailure& failure, bool reforms, const Turn& turn) {
  const absl::StatusOr<Topology> topology = TopologyOfRanks();
  const bool tells_all = reforms && failure.damage != Damage::kLeft && topology.ok();
  const ResumeState& back = *state_;
  Present present;
  std::vector<SessionId> told;
  for (int32_t rank = 0; rank < back.size(); ++rank) {
    const auto session = back.session_of(Rank{rank});
    present.by_rank.push_back(session.value_or(SessionId{0}));
    if (!session.has_value()) continue;
    const bool is_new = back.is_new(Rank{rank});
    if (is_new && !tells_all) {
      // It has heard of no generation that could end: it comes again, as a new one.
      workers_.Remove(*session);
      present.by_rank.back() = SessionId{0};
      turn.effects.outgoing.push_back(CloseSession{
          *session, absl::UnavailableError(absl::StrCat("join again: ", failure.reason))});
      continue;
    }
    present.sessions.push_back(*session);
    if (!is_new) continue;
    const Place& place = topology->places[static_cast<size_t>(rank)];
    workers_.at(*session).place = place;
    // It ends at once: nothing is planned in it.
    messages_.Membership(*session, place, *topology, back.record(), back.found(), /*slots=*/0,
                         turn.effects);
    told.push_back(*session);
  }
  back.found().Tell(told, turn.effects);
  turn.Bury(Abandon());
  return present;
}

}  // namespace coordd
