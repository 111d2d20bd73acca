#include "server/job/departure.h"

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/one_line.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/gpu_report.h"
#include "server/model/process_exit.h"
#include "server/model/validate_message.h"

namespace coordd {

std::string DepartureText(v1::DepartureCause cause, absl::string_view detail) {
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

std::string AllAreBack(size_t ranks) {
  return ranks == 1 ? "its rank is back " : absl::StrCat("all ", ranks, " ranks are back ");
}

std::string MembersWho(size_t members) {
  return absl::StrCat(Counted(static_cast<int64_t>(members), "member"),
                      members == 1 ? ", who has " : ", who have ");
}

Damage DamageOf(v1::DepartureCause cause, const Reforming& reforming, Damage so_far) {
  const bool asked =
      cause == v1::DEPARTURE_CAUSE_DRAINED && reforming.wanted() && so_far == Damage::kNone;
  if (asked) return Damage::kAsked;
  const bool said_goodbye =
      cause == v1::DEPARTURE_CAUSE_LEFT || cause == v1::DEPARTURE_CAUSE_DRAINED;
  return said_goodbye ? Damage::kLeft : Damage::kLost;
}

v1::Departure DepartureOf(const JobWorker& worker, v1::DepartureCause cause,
                          absl::string_view detail, bool lost) {
  const bool told = cause == v1::DEPARTURE_CAUSE_CONNECTION_LOST && worker.exit.has_value();
  std::string what = OneLine(told ? LossText(*worker.exit) : DepartureText(cause, detail));
  if (lost) absl::StrAppend(&what, GpuReport(worker.gpu_health));
  const bool is_member = worker.generation != Generation{0};
  v1::Departure departure;
  departure.set_rank(is_member ? ToInt(worker.place.rank) : -1);
  departure.set_worker_id(worker.join.worker_id());
  departure.set_hostname(worker.join.host().hostname());
  departure.set_pid(worker.join.pid());
  departure.set_cause(cause);
  departure.set_detail(Truncated(what, kMaxReasonBytes));
  departure.set_launch(worker.join.launch());
  if (cause == v1::DEPARTURE_CAUSE_PROGRAM_FAILED) departure.set_failure(std::string(detail));
  if (worker.exit.has_value()) *departure.mutable_exit() = *worker.exit;
  return departure;
}

std::vector<v1::Departure> NoteDepartures(const std::vector<v1::Departure>& departures,
                                          Drains& drains, JobHistory& history,
                                          const JobMessages& messages, Effects& effects) {
  std::vector<v1::Departure> departed = departures;
  for (v1::Departure& departure : departed) {
    const bool was_asked = drains.NoteGone(departure.worker_id());
    if (history.Knows(departure)) continue;
    departure.set_drained(was_asked || departure.cause() == v1::DEPARTURE_CAUSE_DRAINED);
    history.Add(departure);
    messages.EmitDeparture(departure,
                           absl::StrCat("rank ", departure.rank(), " (host ", departure.hostname(),
                                        ", pid ", departure.pid(), ") ", departure.detail()),
                           effects);
  }
  return departed;
}

std::string FailureText(const JobWorker& witness, const v1::CollectiveFailed& failed, bool is_rank,
                        const JobWorker* blamed, const std::optional<PendingTensor>& waited_in) {
  std::string text =
      absl::StrCat(Who(witness), " reported that ",
                   failed.tensor().empty() ? "a collective" : "tensor " + failed.tensor(),
                   " failed", failed.detail().empty() ? "" : ": ", failed.detail());
  if (is_rank) {
    absl::StrAppend(
        &text, "; it blames ",
        blamed == nullptr ? absl::StrCat("rank ", failed.suspect_rank()) : Who(*blamed));
  }
  if (waited_in.has_value() && waited_in->missing_count > 0) {
    absl::StrAppend(&text, "; ", waited_in->name, " lacked ",
                    RanksString(waited_in->missing, waited_in->missing_count));
  }
  return text;
}

}  // namespace coordd
