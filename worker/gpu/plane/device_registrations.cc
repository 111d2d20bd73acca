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

bool IsGone(const std::shared_ptr<std::atomic<bool>>& gone) {
  return gone != nullptr && gone->load(std::memory_order_acquire);
}

bool IsMarker(const BatchJob& batch, const TensorJob& tensor) {
  return batch.kind() == CollectiveKind::kAllgather &&
         absl::StartsWith(tensor.spec().name, kMarker);
}

}  // namespace

std::string DeviceRegistrations::NameOf(ProcessSetId process_set,
                                        const Registration& registration) {
  return absl::StrCat(kMarker, ToInt(process_set), "/", registration.meeting, "/",
                      registration.expected, *registration.as_window ? "/window" : "");
}

int64_t DeviceRegistrations::Begin(ProcessSetId process_set) {
  MutexLock lock(&mu_);
  Set& set = sets_[process_set];
  const int64_t number = set.next++;
  set.registrations[number];
  return number;
}

absl::Status DeviceRegistrations::Give(ProcessSetId process_set, int64_t number, Region region) {
  MutexLock lock(&mu_);
  Registrations& registrations = sets_[process_set].registrations;
  size_t given = 0;
  for (const auto& [other_number, other] : registrations) {
    if (other.region.empty() || IsGone(other.gone)) continue;
    ++given;
    if (Overlap(region, other.region)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the memory overlaps with ", other.region.size(), " bytes that are registered",
          other.gone == nullptr ? "" : ", and are being unregistered"));
    }
  }
  if (given >= kRegionsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(given, " regions are registered in process set ", ToInt(process_set),
                     ", expected at most ", kRegionsMax));
  }
  registrations.at(number).region = region;
  return absl::OkStatus();
}

std::optional<int64_t> DeviceRegistrations::TakeTurn(ProcessSetId process_set, int64_t number) {
  MutexLock lock(&mu_);
  Registrations& registrations = sets_[process_set].registrations;
  std::vector<int64_t> windows;
  for (const auto& [other_number, other] : registrations) {
    if (other_number < number && !other.ended) return std::nullopt;
    if (other.gone != nullptr && !IsGone(other.gone)) return std::nullopt;
    if (other.gone == nullptr && other.as_window.value_or(false)) windows.push_back(other.meeting);
  }
  registrations.at(number).has_turn = true;
  return DigestOf(windows);
}

std::string DeviceRegistrations::Expect(ProcessSetId process_set, int64_t number, int64_t meeting,
                                        bool as_window) {
  MutexLock lock(&mu_);
  Registration& registration = sets_[process_set].registrations.at(number);
  registration.as_window = as_window;
  registration.meeting = meeting;
  ++registration.expected;
  return NameOf(process_set, registration);
}

bool DeviceRegistrations::WasApplied(ProcessSetId process_set, int64_t number) {
  MutexLock lock(&mu_);
  return sets_[process_set].registrations.at(number).applied;
}

void DeviceRegistrations::End(ProcessSetId process_set, int64_t number) {
  MutexLock lock(&mu_);
  Registrations& registrations = sets_[process_set].registrations;
  Registration& registration = registrations.at(number);
  registration.ended = true;
  if (!registration.applied) registrations.erase(number);
}

DeviceRegistrations::Registration* DeviceRegistrations::Find(ProcessSetId process_set,
                                                             absl::string_view name) {
  for (auto& [number, registration] : sets_[process_set].registrations) {
    if (registration.as_window.has_value() && name == NameOf(process_set, registration))
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
          "coordd_register_device: the others register memory in process set ", ToInt(process_set),
          ", and this rank ", absent ? "has called coordd_join" : "has given up waiting for them",
          ", expected all ranks of the process set"));
    }
    found->applied = true;
    region = found->region;
  }
  return backend.RegisterMemory(process_set, region);
}

absl::StatusOr<DeviceRegistrations::Leaving> DeviceRegistrations::Remove(ProcessSetId process_set,
                                                                         const std::byte* memory) {
  MutexLock lock(&mu_);
  Registrations& registrations = sets_[process_set].registrations;
  // What is gone may have been registered anew.
  auto found = registrations.end();
  for (auto it = registrations.begin(); it != registrations.end(); ++it) {
    if (it->second.region.data() != memory || it->second.region.empty()) continue;
    if (found == registrations.end() || IsGone(found->second.gone)) found = it;
  }
  if (found == registrations.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory that is not registered in process set ", ToInt(process_set)));
  }
  Registration& removed = found->second;
  if (removed.gone != nullptr) return Leaving{removed.region, removed.gone, /*first=*/false};
  const bool is_window = removed.as_window.value_or(false);
  const bool another_one_is_under_way =
      std::any_of(registrations.begin(), registrations.end(),
                  [](const auto& one) { return one.second.has_turn && !one.second.ended; });
  if (!removed.ended || (is_window && another_one_is_under_way)) {
    return absl::FailedPreconditionError(
        absl::StrCat("a registration is under way in process set ", ToInt(process_set),
                     ", expected it to be over before this memory is unregistered"));
  }
  removed.gone = std::make_shared<std::atomic<bool>>(false);
  return Leaving{removed.region, removed.gone, /*first=*/true};
}

void DeviceRegistrations::Forget(ProcessSetId process_set, const Leaving& leaving) {
  MutexLock lock(&mu_);
  Registrations& registrations = sets_[process_set].registrations;
  const auto found = std::find_if(registrations.begin(), registrations.end(),
                                  [&](const auto& one) { return one.second.gone == leaving.gone; });
  if (found != registrations.end()) registrations.erase(found);
}

}  // namespace coordd
