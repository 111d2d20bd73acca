#include "client/coordrun/program/host_watch.h"

#include "common/launch/host_identity.h"

namespace coordd {

void HostWatch::Begin(const RunPlan& plan, const Environment& environment) {
  discovery_ = std::make_unique<HostDiscovery>(options_.discovery_script, options_.slots_per_host,
                                               environment);
  std::vector<HostSlots> planned;
  for (const HostRanks& host : plan.hosts)
    planned.push_back({.host = host.host, .slots = host.count, .user = host.user});
  slots_.Update(planned);
}

HostRanks HostWatch::PlaceOf(int32_t worker) const {
  const Slot& slot = slots_.slots()[static_cast<size_t>(worker)];
  return {.host = slot.host,
          .user = slot.user,
          .here = IsHere(options_, slot.host, ThisHost("").hostname),
          .first_rank = worker,
          .count = 1,
          .first_local = slots_.LocalRankOf(worker),
          .local_size = slot.local_size};
}

void HostWatch::Await(std::vector<pollfd>& fds) {
  if (change()) discovery_->Await(fds);
}

std::optional<absl::StatusOr<std::vector<HostSlots>>> HostWatch::Handle(
    absl::Span<const pollfd> fds, absl::Time now) {
  if (!change()) return std::nullopt;
  return discovery_->Handle(fds, now);
}

}  // namespace coordd
