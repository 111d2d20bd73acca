#include "server/job/current_generation.h"

namespace coordd {

void AddDeparture(std::deque<v1::Departure>& departures, const v1::Departure& departure) {
  if (departures.size() == kMaxDepartures) departures.pop_front();
  departures.push_back(departure);
}

bool CurrentGeneration::Worsen(Damage damage) {
  if (damage <= damage_) return false;
  damage_ = damage;
  return true;
}

v1::Abort CurrentGeneration::AbortOf(bool reforms) const {
  v1::Abort abort;
  abort.set_reason(reason_);
  abort.set_in_flight(damage_ != Damage::kLeft);
  abort.set_reforms(reforms);
  abort.set_asked(damage_ == Damage::kAsked);
  abort.set_report_process_sets(reforms && !knows_sets_);
  for (const v1::Departure& departure : departed_) *abort.add_departures() = departure;
  return abort;
}

void CurrentGeneration::DropOld(const std::string& worker_id, SessionId session) {
  const auto old = old_.find(worker_id);
  if (old != old_.end() && old->second == session) old_.erase(old);
}

std::optional<SessionId> CurrentGeneration::OldOf(const std::string& worker_id) const {
  const auto old = old_.find(worker_id);
  if (old == old_.end()) return std::nullopt;
  return old->second;
}

}  // namespace coordd
