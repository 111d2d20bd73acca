#include "server/job/job_history.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/protocol/protocol_bounds.h"
#include "server/model/process_exit.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// What the names have in common that a launcher gives to the workers of one run: "RUN.0.0",
// "RUN-1.2.0".
absl::string_view RunOf(absl::string_view launch) {
  return launch.substr(0, launch.find_first_of(".-"));
}

}  // namespace

void AddDeparture(std::deque<v1::Departure>& departures, const v1::Departure& departure) {
  if (departures.size() == kMaxDepartures) departures.pop_front();
  departures.push_back(departure);
}

bool JobHistory::Knows(const v1::Departure& departure) const {
  return std::any_of(departures_.begin(), departures_.end(), [&](const v1::Departure& known) {
    return known.worker_id() == departure.worker_id() && known.detail() == departure.detail();
  });
}

// Workers of one run may well form its job anew, when all have left or were lost.
void JobHistory::ForgetEarlierRun(const std::string& launch) {
  const absl::string_view run = RunOf(launch);
  if (run.empty()) return;
  for (const v1::Departure& departure : departures_)
    if (RunOf(departure.launch()) == run) return;
  departures_.clear();
  executed_.ForgetBefore();
}

JobHistory::ProcessNews JobHistory::NoteExit(const v1::LaunchedExit& in) {
  const std::string what = ExitText(in.exit());
  for (v1::Departure& departure : departures_) {
    if (departure.launch() != in.launch()) continue;
    ProcessNews told{.departed = true};
    const bool said_goodbye = departure.cause() == v1::DEPARTURE_CAUSE_LEFT ||
                              departure.cause() == v1::DEPARTURE_CAUSE_DRAINED;
    const bool news = !departure.has_exit() && !(said_goodbye && EndedWell(in.exit()));
    *departure.mutable_exit() = in.exit();
    if (!news) return told;
    departure.set_detail(Truncated(absl::StrCat(departure.detail(), "; ", what), kMaxReasonBytes));
    const std::string who = departure.rank() < 0 ? absl::StrCat("worker ", departure.worker_id())
                                                 : absl::StrCat("rank ", departure.rank());
    told.cause = departure.cause();
    told.sentence = absl::StrCat(who, " (host ", departure.hostname(), ", pid ", departure.pid(),
                                 "), which has departed: ", what);
    return told;
  }
  if (EndedWell(in.exit())) return {};
  return {.sentence = absl::StrCat("a process that had not joined (the launcher's rank ", in.rank(),
                                   ", host ", in.hostname(), ", pid ", in.pid(), "): ", what)};
}

}  // namespace coordd
