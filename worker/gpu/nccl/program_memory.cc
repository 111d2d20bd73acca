#include "worker/gpu/nccl/program_memory.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace coordd {

void ProgramMemory::Add(ProcessSetId group, Region region) {
  groups_[group].push_back(region);
  Count(static_cast<int64_t>(region.size()));
}

absl::Status ProgramMemory::RegisterWith(ProcessSetId group, NcclCommunicator& communicator,
                                         size_t* offered) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return absl::OkStatus();
  for (; *offered < found->second.size(); ++*offered) {
    const Region region = found->second[*offered];
    if (!communicator.HasWindow(region.data()))
      COORDD_RETURN_IF_ERROR(communicator.Register(region));
  }
  return absl::OkStatus();
}

void ProgramMemory::Release(ProcessSetId group, Region region, std::function<void()> released) {
  releases_.push_back({group, region, std::move(released)});
}

void ProgramMemory::LetGo(Deregister deregister) {
  for (const Waiting& waiting : std::exchange(releases_, {})) {
    const auto group = groups_.find(waiting.group);
    if (group != groups_.end()) {
      std::vector<Region>& regions = group->second;
      const auto found = std::find_if(regions.begin(), regions.end(), [&](Region region) {
        return region.data() == waiting.region.data();
      });
      if (found != regions.end()) {
        deregister(waiting.group, static_cast<size_t>(found - regions.begin()), *found);
        Count(-static_cast<int64_t>(found->size()));
        regions.erase(found);
      }
      if (regions.empty()) groups_.erase(group);
    }
    waiting.released();
  }
}

void ProgramMemory::EndGroup(ProcessSetId group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  for (Region region : found->second) Count(-static_cast<int64_t>(region.size()));
  groups_.erase(found);
}

}  // namespace coordd
