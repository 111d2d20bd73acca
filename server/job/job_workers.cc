#include "server/job/job_workers.h"

#include <algorithm>
#include <utility>

namespace coordd {

JobWorker& JobWorkers::Add(SessionId session, JobWorker worker) {
  admission_.Add(worker.join);
  return workers_.emplace(session, std::move(worker)).first->second;
}

JobWorker JobWorkers::Take(SessionId session) {
  const auto it = workers_.find(session);
  JobWorker worker = std::move(it->second);
  workers_.erase(it);
  if (worker.departs()) --departing_;
  return worker;
}

void JobWorkers::Remove(SessionId session) { Release(Take(session)); }

void JobWorkers::Clear() {
  workers_.clear();
  admission_.Clear();
  departing_ = 0;
}

const JobWorker* JobWorkers::Find(SessionId session) const {
  const auto it = workers_.find(session);
  return it == workers_.end() ? nullptr : &it->second;
}

void JobWorkers::StreamEnded(SessionId session, absl::Time at, absl::string_view detail) {
  JobWorker& worker = workers_.at(session);
  if (!worker.departs()) ++departing_;
  worker.departs_at = at;
  worker.stream_end = std::string(detail);
}

std::vector<SessionId> JobWorkers::DueToDepart(absl::Time now) const {
  std::vector<std::pair<absl::Time, SessionId>> due;
  for (const auto& [session, worker] : workers_) {
    if (departing_ == 0) break;
    if (worker.departs() && (worker.exit.has_value() || worker.departs_at <= now))
      due.emplace_back(worker.departs_at, session);
  }
  std::sort(due.begin(), due.end());
  std::vector<SessionId> sessions;
  sessions.reserve(due.size());
  for (const auto& [at, session] : due) sessions.push_back(session);
  return sessions;
}

absl::Time JobWorkers::NextDeparture() const {
  absl::Time next = absl::InfiniteFuture();
  if (departing_ == 0) return next;
  for (const auto& [session, worker] : workers_) next = std::min(next, worker.departs_at);
  return next;
}

}  // namespace coordd
