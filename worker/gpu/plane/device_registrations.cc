#include "worker/gpu/plane/device_registrations.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/gpu/plane/window_claim.h"

namespace coordd {
namespace {

constexpr absl::string_view kMarker = "coordd.register/";

bool Overlap(absl::Span<std::byte> one, absl::Span<std::byte> other) {
  return one.data() < other.data() + other.size() && other.data() < one.data() + one.size();
}

bool IsMarker(const BatchJob& batch, const TensorJob& tensor) {
  return batch.kind() == CollectiveKind::kAllgather &&
         absl::StartsWith(tensor.spec().name, kMarker);
}

}  // namespace

std::string DeviceRegistrations::NameOf(ProcessSetId process_set, int64_t number, bool as_window) {
  return absl::StrCat(kMarker, ToInt(process_set), "/", number, as_window ? "/window" : "");
}

absl::StatusOr<DeviceRegistrations::Begun> DeviceRegistrations::Begin(ProcessSetId process_set,
                                                                      Region region) {
  MutexLock lock(&mu_);
  Set& set = sets_[process_set];
  if (set.registrations.size() >= kRegionsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(set.registrations.size(), " regions are registered in process set ",
                     ToInt(process_set), ", expected at most ", kRegionsMax));
  }
  std::vector<int64_t> windows;
  for (const auto& [number, other] : set.registrations) {
    if (Overlap(region, other.region)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the memory overlaps with ", other.region.size(), " bytes that are registered"));
    }
    if (other.as_window.value_or(false)) windows.push_back(number);
  }
  const int64_t number = set.next++;
  set.registrations[number].region = region;
  return Begun{number, DigestOf(windows)};
}

std::string DeviceRegistrations::Expect(ProcessSetId process_set, int64_t number, bool as_window) {
  MutexLock lock(&mu_);
  sets_[process_set].registrations.at(number).as_window = as_window;
  return NameOf(process_set, number, as_window);
}

bool DeviceRegistrations::WasApplied(ProcessSetId process_set, int64_t number) {
  MutexLock lock(&mu_);
  Registrations& registrations = sets_[process_set].registrations;
  const auto found = registrations.find(number);
  if (found == registrations.end()) return false;
  found->second.ended = true;
  if (found->second.applied) return true;
  registrations.erase(found);
  return false;
}

DeviceRegistrations::Registration* DeviceRegistrations::Find(ProcessSetId process_set,
                                                             absl::string_view name) {
  for (auto& [number, registration] : sets_[process_set].registrations) {
    const std::optional<bool>& as_window = registration.as_window;
    if (as_window.has_value() && name == NameOf(process_set, number, *as_window))
      return &registration;
  }
  return nullptr;
}

std::vector<DeviceRegistrations::Region> DeviceRegistrations::WindowsOf(const BatchJob& batch) {
  std::vector<Region> windows;
  for (const TensorJob& tensor : batch.tensors()) {
    if (tensor.absent || !IsMarker(batch, tensor)) continue;
    MutexLock lock(&mu_);
    const Registration* const found = Find(batch.process_set(), tensor.spec().name);
    if (found != nullptr && *found->as_window) windows.push_back(found->region);
  }
  return windows;
}

absl::Status DeviceRegistrations::Apply(const BatchJob& batch, NcclBackend& backend) {
  for (const TensorJob& tensor : batch.tensors()) {
    if (IsMarker(batch, tensor)) {
      COORDD_RETURN_IF_ERROR(
          ApplyMarker(batch.process_set(), tensor.spec().name, tensor.absent, backend));
    } else if (tensor.absent && backend.HasMemory(batch.process_set())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "tensor ", tensor.spec().name,
          ": this rank has joined, and has no part in memory that all ranks have registered with "
          "NCCL: unregister it on all of them before a join"));
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceRegistrations::ApplyMarker(ProcessSetId process_set, const std::string& name,
                                              bool absent, NcclBackend& backend) {
  Region region;
  {
    MutexLock lock(&mu_);
    Registration* const found = absent ? nullptr : Find(process_set, name);
    if (found == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          name, ": the others register memory with NCCL, and this rank ",
          absent ? "has joined" : "no longer does", ", expected all ranks of the process set"));
    }
    found->applied = true;
    region = found->region;
  }
  return backend.RegisterMemory(process_set, region);
}

absl::StatusOr<DeviceRegistrations::Region> DeviceRegistrations::Remove(ProcessSetId process_set,
                                                                        const std::byte* memory) {
  MutexLock lock(&mu_);
  Registrations& registrations = sets_[process_set].registrations;
  const auto found = std::find_if(registrations.begin(), registrations.end(), [&](const auto& one) {
    return one.second.region.data() == memory;
  });
  if (found == registrations.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory that is not registered in process set ", ToInt(process_set)));
  }
  const bool is_window = found->second.as_window.value_or(false);
  const bool another_one_is_under_way =
      std::any_of(registrations.begin(), registrations.end(),
                  [](const auto& one) { return !one.second.ended; });
  if (!found->second.ended || (is_window && another_one_is_under_way)) {
    return absl::FailedPreconditionError(
        absl::StrCat("a registration is under way in process set ", ToInt(process_set),
                     ", expected it to be over before this memory is unregistered"));
  }
  const Region region = found->second.region;
  registrations.erase(found);
  return region;
}

}  // namespace coordd
