#include "worker/gpu/plane/device_agreements.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/machine/build_info.h"
#include "worker/interfaces/lanes.h"

namespace coordd {

DeviceAgreements::DeviceAgreements(const DevicePlaneOptions& options, const GroupLayout& layout,
                                   GpuAccess& access, Store& store, Clock& clock,
                                   DeviceReport& report, std::function<void(ProcessSetId)> decided)
    : options_(options),
      layout_(layout),
      access_(access),
      store_(store),
      clock_(clock),
      report_(report),
      decided_(std::move(decided)) {}

absl::Status DeviceAgreements::ClaimDevice(int32_t device) {
  MutexLock lock(&mu_);
  if (device_ < 0) device_ = device;
  if (device_ == device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("device ", device, ", expected ", device_,
                   ": this rank's collectives are there, since its first tensor was"));
}

int32_t DeviceAgreements::device() {
  MutexLock lock(&mu_);
  return device_;
}

std::shared_ptr<NcclMemory> DeviceAgreements::window() {
  MutexLock lock(&mu_);
  return window_.value_or(nullptr);
}

void DeviceAgreements::DefineGroup(ProcessSetId process_set, RankList ranks) {
  MutexLock lock(&mu_);
  sets_[process_set] = std::move(ranks);
}

bool DeviceAgreements::EndGroup(ProcessSetId process_set) {
  MutexLock lock(&mu_);
  sets_.erase(process_set);
  return agreements_.count(process_set) > 0;
}

void DeviceAgreements::Forget(ProcessSetId process_set) {
  std::unique_ptr<DeviceAgreement> agreement;
  {
    MutexLock lock(&mu_);
    const auto found = agreements_.find(process_set);
    if (found != agreements_.end()) {
      agreement = std::move(found->second);
      agreements_.erase(found);
    }
  }
  agreement.reset();  // from now on it notes nothing
  report_.ForgetDecision(process_set);
}

std::optional<std::vector<int32_t>> DeviceAgreements::FindMembers(ProcessSetId process_set) {
  if (ToInt(process_set) == 0) {
    std::vector<int32_t> all(static_cast<size_t>(layout_.size()));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  MutexLock lock(&mu_);
  const auto found = sets_.find(process_set);
  if (found == sets_.end()) return std::nullopt;
  return *found->second;
}

std::vector<int32_t> DeviceAgreements::MembersOf(ProcessSetId process_set) {
  std::optional<std::vector<int32_t>> members = FindMembers(process_set);
  COORDD_CHECK(members.has_value());
  return *std::move(members);
}

DeviceClaim DeviceAgreements::Claim() {
  DeviceClaim claim;
  claim.rank = ToInt(layout_.self());
  claim.host = options_.host;
  claim.machine = options_.machine;
  claim.rdma = options_.network.rdma;
  claim.rdma_for_host = options_.network.unused_rdma && options_.host_uses_rdma;
  claim.algorithm = options_.rules.algorithm;
  const DeviceReport::MaybeNccl nccl = access_.Nccl();
  report_.NoteNccl(nccl);
  if (!nccl.ok()) {
    claim.why_not = std::string(nccl.status().message());
    return claim;
  }
  claim.nccl = NcclVersionText((*nccl)->nccl.version);
  const DeviceRuntime& devices = *(*nccl)->device;
  int32_t device = 0;
  {
    MutexLock lock(&mu_);
    // A rank without a tensor of its own takes what it was given.
    if (device_ < 0)
      device_ = std::clamp(options_.default_device, 0, std::max(devices.device_count() - 1, 0));
    device = device_;
  }
  const DeviceIdentity& own = devices.identity(device);
  const GpuNetwork& network = options_.network;
  claim.uuid = own.uuid;
  claim.float8 = NcclReducesFloat8((*nccl)->nccl.version, own.capability_major);
  claim.direct = options_.direct && NcclLaunchesOnThreads((*nccl)->nccl);
  claim.multicast = own.multicast;
  claim.registers = options_.backend.register_buffers && NcclRegisters((*nccl)->nccl.functions);
  if (options_.symmetric_windows) claim.window_bytes = WindowBytes(*nccl, device);
  claim.gpu_direct = network.rdma && network.gpu_direct &&
                     (network.peer_memory || (network.dma_buf && own.dma_buf));
  for (int32_t other = 0; other < devices.device_count(); ++other) {
    if (other == device) continue;
    claim.neighbours.push_back(
        {devices.identity(other).uuid, network.peer_to_peer && devices.HasNvLink(device, other)});
  }
  report_.NoteDevice(own, options_.mps);
  return claim;
}

// Before the ranks agree: a rank that has no memory for it must not be waited for later.
int64_t DeviceAgreements::WindowBytes(const std::shared_ptr<NcclRuntime>& nccl, int32_t device) {
  MutexLock lock(&mu_);
  if (!window_.has_value()) {
    window_.emplace(nullptr);
    if (NcclMemory::CanBeWindows(nccl->nccl.functions)) {
      auto made = NcclMemory::Allocate(nccl, device, options_.BufferBytes());
      if (made.ok()) window_ = *std::move(made);
      if (!made.ok()) COORDD_LOG(kWarning, "no symmetric windows: ", made.status().message());
    } else {
      COORDD_LOG(kWarning, "no symmetric windows: NCCL is ", NcclVersionText(nccl->nccl.version),
                 ", expected 2.27 or later");
    }
  }
  return *window_ == nullptr ? 0 : static_cast<int64_t>((*window_)->span().size());
}

std::optional<DeviceAgreement::Place> DeviceAgreements::PlaceIn(ProcessSetId process_set) {
  DeviceAgreement::Place place{process_set, ToInt(layout_.self()), layout_.size()};
  MutexLock lock(&mu_);
  if (agreements_.count(process_set) > 0) return std::nullopt;
  if (ToInt(process_set) == 0) return place;
  const auto set = sets_.find(process_set);
  if (set == sets_.end()) return std::nullopt;
  const std::vector<int32_t>& ranks = *set->second;
  const auto self = std::lower_bound(ranks.begin(), ranks.end(), place.index);
  place.index = static_cast<int32_t>(self - ranks.begin());
  place.size = static_cast<int32_t>(ranks.size());
  return place;
}

void DeviceAgreements::Begin(ProcessSetId process_set) {
  const std::optional<DeviceAgreement::Place> place = PlaceIn(process_set);
  if (!place.has_value()) return;
  DeviceClaim claim = Claim();
  if (ToInt(process_set) == 0 && !claim.nccl.empty()) claim.kept = access_.ClaimOfKept(device());
  MutexLock lock(&mu_);
  if (stopped_ || agreements_.count(process_set) > 0) return;
  DeviceRules rules = options_.rules;
  rules.exchanges = ToInt(process_set) < kMaxExchangeSets;
  agreements_[process_set] =
      std::make_unique<DeviceAgreement>(*place, std::move(claim), rules, store_, clock_,
                                        [this, process_set] { decided_(process_set); });
}

std::optional<absl::StatusOr<DeviceDecision>> DeviceAgreements::DecisionOf(
    ProcessSetId process_set) {
  MutexLock lock(&mu_);
  const auto found = agreements_.find(process_set);
  if (found == agreements_.end()) return std::nullopt;
  return found->second->decision();
}

DeviceAgreements::Ending DeviceAgreements::Stop() {
  MutexLock lock(&mu_);
  stopped_ = true;
  return std::exchange(agreements_, {});
}

}  // namespace coordd
