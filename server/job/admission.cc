#include "server/job/admission.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"
#include "common/protocol/proto_convert.h"

namespace coordd {
namespace {

absl::string_view OrNone(const std::string& version) {
  return version.empty() ? absl::string_view("none") : absl::string_view(version);
}

// Whether its launcher counts ranks, each once: in a job that goes on without those that are lost,
// a rank may be somebody else's before its old one is known to have gone.
bool HasSeat(const v1::Join& join) {
  return join.launcher_rank() >= 0 && join.launcher_local_size() > 0 && !join.launch().empty() &&
         FromProto(join.on_failure()) == OnFailure::kEnd;
}

std::string Starts(const std::string& hostname, int32_t workers) {
  return absl::StrCat("host ", hostname, ", where ", Counted(workers, "worker is", "workers are"),
                      " started");
}

}  // namespace

TopologyMember ToTopologyMember(const v1::Join& join) {
  return TopologyMember{.worker_id = join.worker_id(),
                        .node_id = join.host().node_id(),
                        .labels = {join.host().topology().begin(), join.host().topology().end()},
                        .launcher_rank = join.launcher_rank(),
                        .launcher_local_rank = join.launcher_local_rank()};
}

absl::Status Admission::Check(const v1::Join& join) const {
  if (workers_.contains(join.worker_id())) {
    return absl::AlreadyExistsError(
        absl::StrCat("worker ", join.worker_id(), " is a member of job ", join.job(), " already"));
  }
  COORDD_RETURN_IF_ERROR(CheckTopologyOf(join));
  COORDD_RETURN_IF_ERROR(CheckDevices(join));
  return CheckRank(join);
}

absl::Status Admission::CheckTopologyOf(const v1::Join& join) const {
  if (nodes_.empty()) return absl::OkStatus();
  const TopologyMember joining = ToTopologyMember(join);
  // Those who are in agree with each other, so one of the same node, or any, speaks for all.
  auto it = nodes_.find(joining.node_id);
  if (it == nodes_.end()) it = nodes_.begin();
  return CheckTopology(joining, TopologyMember{.worker_id = *it->second.workers.begin(),
                                               .node_id = it->first,
                                               .labels = it->second.labels});
}

absl::Status Admission::CheckDevices(const v1::Join& join) const {
  std::set<std::string> own;
  for (const v1::Device& device : join.devices()) {
    const auto it = worker_of_device_.find(device.uuid());
    if (it != worker_of_device_.end()) {
      return absl::FailedPreconditionError(absl::StrCat("workers ", join.worker_id(), " and ",
                                                        it->second, " both use GPU ", device.uuid(),
                                                        ": each rank needs a GPU of its own"));
    }
    if (!own.insert(device.uuid()).second) {
      return absl::FailedPreconditionError(
          absl::StrCat("worker ", join.worker_id(), " names GPU ", device.uuid(), " twice"));
    }
  }
  if (join.devices().empty() || nccl_workers_.empty()) return absl::OkStatus();
  const auto& [version, workers] = *nccl_workers_.begin();
  if (version == join.versions().nccl()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("worker ", join.worker_id(), " has NCCL ",
                                                    OrNone(join.versions().nccl()), ", worker ",
                                                    *workers.begin(), " has NCCL ", OrNone(version),
                                                    ": all workers with a GPU must have the same"));
}

absl::Status Admission::CheckRank(const v1::Join& join) const {
  if (!HasSeat(join)) return absl::OkStatus();
  const auto it = seats_.find(join.launcher_rank());
  if (it == seats_.end() || it->second.node_id == join.host().node_id()) return absl::OkStatus();
  const Seat& taken = it->second;
  return absl::FailedPreconditionError(absl::StrCat(
      "two workers are rank ", join.launcher_rank(), " to their launchers: ", taken.worker_id,
      " on ", Starts(taken.hostname, taken.local_size), ", and ", join.worker_id(), " on ",
      Starts(join.host().hostname(), join.launcher_local_size()),
      ": expected as many on each node (-np of coordrun), or --first-rank where they differ"));
}

void Admission::Add(const v1::Join& join) {
  const std::string& id = join.worker_id();
  COORDD_CHECK(workers_.insert(id).second);
  Node& node = nodes_[join.host().node_id()];
  node.labels = {join.host().topology().begin(), join.host().topology().end()};
  node.workers.insert(id);
  for (const v1::Device& device : join.devices()) worker_of_device_[device.uuid()] = id;
  if (!join.devices().empty()) nccl_workers_[join.versions().nccl()].insert(id);
  if (!HasSeat(join)) return;
  seats_.try_emplace(join.launcher_rank(), Seat{.worker_id = id,
                                                .node_id = join.host().node_id(),
                                                .hostname = join.host().hostname(),
                                                .local_size = join.launcher_local_size()});
}

void Admission::Remove(const v1::Join& join) {
  const std::string& id = join.worker_id();
  if (workers_.erase(id) == 0) return;
  const auto seat = seats_.find(join.launcher_rank());
  if (seat != seats_.end() && seat->second.worker_id == id) seats_.erase(seat);
  const auto node = nodes_.find(join.host().node_id());
  node->second.workers.erase(id);
  if (node->second.workers.empty()) nodes_.erase(node);
  for (const v1::Device& device : join.devices()) worker_of_device_.erase(device.uuid());
  const auto nccl = nccl_workers_.find(join.versions().nccl());
  if (nccl == nccl_workers_.end()) return;
  nccl->second.erase(id);
  if (nccl->second.empty()) nccl_workers_.erase(nccl);
}

}  // namespace coordd
