#include "client/coordrun/plan/first_failure.h"

#include <algorithm>
#include <map>

namespace coordd {

bool SaidGoodbye(const v1::Departure& departure) {
  return departure.cause() == v1::DEPARTURE_CAUSE_LEFT ||
         departure.cause() == v1::DEPARTURE_CAUSE_DRAINED;
}

namespace {

bool HasFailed(const v1::Departure& departure, const RunState::Worker& worker) {
  if (departure.cause() == v1::DEPARTURE_CAUSE_PROGRAM_FAILED) return true;
  if (worker.end.has_value()) return worker.ended_by_itself && !worker.end->ok();
  // Lost, and its process is not; unless that is because coordrun is ending it.
  return !SaidGoodbye(departure) && departure.exit().reason().empty();
}

}  // namespace

std::optional<FirstFailure> FindFirstFailure(const v1::ServerState& state, const std::string& job,
                                             const std::vector<std::string>& launches,
                                             const RunState& run) {
  for (const v1::JobState& found : state.jobs()) {
    if (found.name() != job) continue;
    // A program may have been a member several times: its last departure counts.
    std::map<int32_t, int> last;  // worker, place among the departures
    for (int i = 0; i < found.departures_size(); ++i) {
      const v1::Departure& departure = found.departures(i);
      const auto worker = std::find(launches.begin(), launches.end(), departure.launch());
      if (departure.rank() < 0 || departure.launch().empty() || worker == launches.end()) continue;
      last[static_cast<int32_t>(worker - launches.begin())] = i;
    }
    std::map<int, int32_t> in_order;
    for (const auto& [worker, place] : last) in_order[place] = worker;
    for (const auto& [place, worker] : in_order) {
      const v1::Departure& departure = found.departures(place);
      if (HasFailed(departure, run.workers()[static_cast<size_t>(worker)]))
        return FirstFailure{worker, departure.failure()};
    }
  }
  return std::nullopt;
}

}  // namespace coordd
