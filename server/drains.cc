#include "server/drains.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/proto_convert.h"

namespace coordd {

void Drains::Ask(const std::string& worker_id, std::string asked_by, absl::Duration grace) {
  drains_[worker_id] = Drain{.asked_by = std::move(asked_by), .grace = grace};
}

const Drain& Drains::Begin(const std::string& worker_id, absl::Time now) {
  const auto found = drains_.find(worker_id);
  COORDD_CHECK(found != drains_.end());
  found->second.until = now + found->second.grace;
  return found->second;
}

const Drain* Drains::Find(const std::string& worker_id) const {
  const auto found = drains_.find(worker_id);
  return found == drains_.end() ? nullptr : &found->second;
}

std::vector<std::string> Drains::Overdue(absl::Time now) const {
  std::vector<std::string> overdue;
  for (const auto& [worker_id, drain] : drains_)
    if (drain.until <= now) overdue.push_back(worker_id);
  return overdue;
}

absl::Time Drains::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [worker_id, drain] : drains_) next = std::min(next, drain.until);
  return next;
}

void Drains::Forgive(absl::Duration gap) {
  for (auto& [worker_id, drain] : drains_) drain.until += gap;
}

void Drains::Suspend() {
  for (auto& [worker_id, drain] : drains_) drain.until = absl::InfiniteFuture();
}

std::vector<std::string> Drains::worker_ids() const {
  std::vector<std::string> ids;
  for (const auto& [worker_id, drain] : drains_) ids.push_back(worker_id);
  return ids;
}

v1::DrainRecord Drains::Record() const {
  v1::DrainRecord record;
  for (const auto& [worker_id, drain] : drains_) {
    v1::DrainEntry& entry = *record.add_drains();
    entry.set_worker_id(worker_id);
    entry.set_asked_by(drain.asked_by);
    ToProto(drain.grace, entry.mutable_grace());
  }
  return record;
}

void Drains::Restore(const v1::DrainRecord& record) {
  for (const v1::DrainEntry& entry : record.drains())
    Ask(entry.worker_id(), entry.asked_by(), FromProto(entry.grace()));
}

}  // namespace coordd
