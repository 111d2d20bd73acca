// What a job does with the ends of its workers' streams, and with what launchers tell about them.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/job_state.h"
#include "server/model/process_exit.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

constexpr absl::string_view kSlept = "coordd was not running for a while";

// What the names have in common that a launcher gives to the workers of one run: "RUN.0.0",
// "RUN-1.2.0".
absl::string_view RunOf(absl::string_view launch) {
  return launch.substr(0, launch.find_first_of(".-"));
}

}  // namespace

// Who is lost is told once, with the reason: a launcher that will tell it is a moment late at most.
// Where nobody waits for the news, nobody waits for the reason.
void JobState::OnSessionEnded(SessionId session, absl::string_view detail, const Turn& turn) {
  const Worker& worker = workers_.at(session);
  const bool may_be_explained = !worker.join.launch().empty() && !worker.exit.has_value();
  if (!may_be_explained || !negotiating() || worker.generation == Generation{0}) {
    if (IsExcused(turn.now) && worker.IsMember()) return Suspend(kSlept, turn);
    return Depart(session, v1::DEPARTURE_CAUSE_CONNECTION_LOST, detail, turn);
  }
  workers_.StreamEnded(session, turn.now + kExitWait, detail);
  reforming_.Explained();
}

void JobState::OnStreamsLost(const std::vector<SessionId>& sessions, absl::string_view detail,
                             const Turn& turn) {
  const bool has_members = std::any_of(sessions.begin(), sessions.end(), [&](SessionId session) {
    return workers_.at(session).IsMember();
  });
  if (has_members && durability_.outlives && MayBeTakenUp()) return Suspend(detail, turn);
  // Those who had come back have to come again, as all do who are waited for.
  if (resume_.has_value() && has_members)
    resume_->Forgive(absl::ZeroDuration(), turn.now + options_.lease + options_.resume_grace);
  for (SessionId session : sessions)
    if (Has(session)) OnSessionEnded(session, "", turn);
}

absl::Status JobState::OnExits(const v1::ReportExitsRequest& request, int32_t* known,
                               const Turn& turn) {
  if (const absl::Status status = token_.Check(request.token()); !status.ok()) return status;
  for (const v1::LaunchedExit& exit : request.exits()) {
    if (NoteExit(exit, turn.effects)) ++*known;
  }
  WatchDeparting(turn);
  if (resume_.has_value() && resume_->complete()) FinishResume(turn);
  return absl::OkStatus();
}

// Of those whose launcher names them; of others nobody can tell. Workers of one run may well form
// its job anew, when all have left or were lost.
void JobState::ForgetEarlierRun(const v1::Join& join) {
  const absl::string_view run = RunOf(join.launch());
  if (run.empty()) return;
  for (const v1::Departure& departure : history_.departures)
    if (RunOf(departure.launch()) == run) return;
  history_.Forget();
}

bool JobState::NoteExit(const v1::LaunchedExit& in, Effects& effects) {
  bool known = resume_.has_value() && NoteLostMember(in);
  for (auto& [session, worker] : workers_) {
    if (worker.join.launch() != in.launch()) continue;
    worker.exit = in.exit();
    known = true;
  }
  if (known) return true;  // the end of its stream, or its goodbye, is here or on its way
  const std::string what = ExitText(in.exit());
  for (v1::Departure& departure : history_.departures) {
    if (departure.launch() != in.launch()) continue;
    const bool said_goodbye = departure.cause() == v1::DEPARTURE_CAUSE_LEFT ||
                              departure.cause() == v1::DEPARTURE_CAUSE_DRAINED;
    const bool news = !departure.has_exit() && !(said_goodbye && EndedWell(in.exit()));
    *departure.mutable_exit() = in.exit();
    if (news) {
      departure.set_detail(
          Truncated(absl::StrCat(departure.detail(), "; ", what), kMaxReasonBytes));
      const std::string who = departure.rank() < 0 ? absl::StrCat("worker ", departure.worker_id())
                                                   : absl::StrCat("rank ", departure.rank());
      Emit(Event::Kind::kProcessEnded,
           absl::StrCat(who, " (host ", departure.hostname(), ", pid ", departure.pid(),
                        "), which has departed: ", what),
           effects, departure.cause());
    }
    return true;
  }
  if (!EndedWell(in.exit())) {
    Emit(Event::Kind::kProcessEnded,
         absl::StrCat("a process that had not joined (the launcher's rank ", in.rank(), ", host ",
                      in.hostname(), ", pid ", in.pid(), "): ", what),
         effects);
  }
  return false;
}

void JobState::WatchDeparting(const Turn& turn) {
  const std::vector<SessionId> due = workers_.DueToDepart(turn.now);
  if (!due.empty() && IsExcused(turn.now)) return Suspend(kSlept, turn);
  for (SessionId session : due) {
    const std::string detail = workers_.at(session).stream_end;
    Depart(session, v1::DEPARTURE_CAUSE_CONNECTION_LOST, detail, turn);
  }
}

}  // namespace coordd
