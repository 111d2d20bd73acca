#include "server/job/drains.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/protocol/proto_convert.h"

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
  awaited_until_ = absl::InfinitePast();
  drains_.merge(std::exchange(gone_, {}));
  for (auto& [worker_id, drain] : drains_) drain.until = absl::InfiniteFuture();
}

bool Drains::NoteGone(const std::string& worker_id) {
  auto drain = drains_.extract(worker_id);
  if (drain.empty()) return false;
  gone_.insert(std::move(drain));
  return true;
}

absl::Status Drains::CloseNode(const std::string& node, std::string asked_by) {
  if (nodes_.size() >= kMaxClosedNodes && !nodes_.contains(node)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(nodes_.size(), " nodes are drained already, expected fewer: lift some"));
  }
  nodes_[node] = std::move(asked_by);
  return absl::OkStatus();
}

std::vector<std::string> Drains::closed_nodes() const {
  std::vector<std::string> nodes;
  for (const auto& [node, asked_by] : nodes_) nodes.push_back(node);
  return nodes;
}

absl::Status Drains::CheckHost(const v1::HostIdentity& host) const {
  for (const std::string& name : {host.hostname(), host.node_id()}) {
    const auto closed = nodes_.find(name);
    if (closed == nodes_.end()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "node ", name, " is drained: ", closed->second, " has asked its workers to leave;",
        " `coordctl drain ", name, " --lift` lets new ones come"));
  }
  return absl::OkStatus();
}

std::vector<std::string> Drains::worker_ids() const {
  std::vector<std::string> ids;
  for (const auto& [worker_id, drain] : drains_) ids.push_back(worker_id);
  return ids;
}

v1::DrainRecord Drains::Record() const {
  v1::DrainRecord record;
  for (const auto* drains : {&drains_, &gone_}) {
    for (const auto& [worker_id, drain] : *drains) {
      v1::DrainEntry& entry = *record.add_drains();
      entry.set_worker_id(worker_id);
      entry.set_asked_by(drain.asked_by);
      ToProto(drain.grace, entry.mutable_grace());
    }
  }
  for (const auto& [node, asked_by] : nodes_) {
    v1::DrainedNode& entry = *record.add_nodes();
    entry.set_node(node);
    entry.set_asked_by(asked_by);
  }
  return record;
}

void Drains::Restore(const v1::DrainRecord& record) {
  for (const v1::DrainEntry& entry : record.drains())
    Ask(entry.worker_id(), entry.asked_by(), FromProto(entry.grace()));
  for (const v1::DrainedNode& entry : record.nodes()) nodes_[entry.node()] = entry.asked_by();
}

}  // namespace coordd
