#include "worker/gpu/plane/device_registrations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr absl::string_view kMarker = "coordd.register/";

bool Overlap(absl::Span<std::byte> one, absl::Span<std::byte> other) {
  return one.data() < other.data() + other.size() && other.data() < one.data() + one.size();
}

}  // namespace

absl::StatusOr<std::string> DeviceRegistrations::Expect(ProcessSetId process_set, Region region) {
  MutexLock lock(&mu_);
  std::vector<Region>& regions = regions_[process_set];
  if (regions.size() >= kRegionsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(regions.size(), " regions are registered in process set ", ToInt(process_set),
                     ", expected at most ", kRegionsMax));
  }
  for (Region other : regions) {
    if (!Overlap(region, other)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the memory overlaps with ", other.size(), " bytes that are registered"));
  }
  const std::string name = absl::StrCat(kMarker, ToInt(process_set), "/", next_[process_set]++);
  regions.push_back(region);
  expected_[name] = {process_set, region};
  return name;
}

bool DeviceRegistrations::WasApplied(const std::string& name) {
  MutexLock lock(&mu_);
  const auto found = expected_.find(name);
  if (found == expected_.end()) return false;
  const Expected expected = found->second;
  expected_.erase(found);
  if (expected.applied) return true;
  std::vector<Region>& regions = regions_[expected.process_set];
  // A span's == is that of its elements. A program that does not wait may have removed it already.
  std::erase_if(regions, [&](Region region) { return region.data() == expected.region.data(); });
  return false;
}

absl::Status DeviceRegistrations::Apply(const BatchJob& batch, NcclBackend& backend) {
  const bool marks = batch.kind() == CollectiveKind::kAllgather;
  for (const TensorJob& tensor : batch.tensors()) {
    if (marks && absl::StartsWith(tensor.spec().name, kMarker)) {
      COORDD_RETURN_IF_ERROR(ApplyMarker(tensor.spec().name, tensor.absent, backend));
    } else if (tensor.absent && backend.HasMemory(batch.process_set())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor ", tensor.spec().name,
          ": this rank has joined, and has no part in memory that all ranks have registered with "
          "NCCL: unregister it on all of them before a join"));
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceRegistrations::ApplyMarker(const std::string& name, bool absent,
                                              NcclBackend& backend) {
  Expected expected;
  {
    MutexLock lock(&mu_);
    const auto found = expected_.find(name);
    if (absent || found == expected_.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          name, ": the others register memory with NCCL, and this rank ",
          absent ? "has joined" : "no longer does", ", expected all ranks of the process set"));
    }
    found->second.applied = true;
    expected = found->second;
  }
  return backend.RegisterMemory(expected.process_set, expected.region);
}

absl::StatusOr<DeviceRegistrations::Region> DeviceRegistrations::Remove(ProcessSetId process_set,
                                                                        const std::byte* memory) {
  MutexLock lock(&mu_);
  std::vector<Region>& regions = regions_[process_set];
  const auto found = std::find_if(regions.begin(), regions.end(),
                                  [&](Region region) { return region.data() == memory; });
  if (found == regions.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory that is not registered in process set ", ToInt(process_set)));
  }
  const Region region = *found;
  regions.erase(found);
  return region;
}

}  // namespace coordd
