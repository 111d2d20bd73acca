#include "worker/gpu/plane/device_backend.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "worker/interfaces/lanes.h"

namespace coordd {

DeviceBackend::DeviceBackend(const DevicePlaneOptions& options, const GroupLayout& layout,
                             GpuAccess& access, Store& store, Clock& clock,
                             DeviceAgreements& agreements, DeviceExchanges exchanges)
    : options_(options),
      layout_(layout),
      access_(access),
      store_(store),
      clock_(clock),
      agreements_(agreements),
      exchanges_(std::move(exchanges)),
      meetings_(store, clock, ToInt(layout.self())) {}

void DeviceBackend::End() {
  std::shared_ptr<NcclBackend> ending;
  {
    MutexLock lock(&mu_);
    ending.swap(backend_);
  }
  ending.reset();
  kept_.clear();
  if (const auto made = results()) made->Close();
}

std::shared_ptr<NcclBackend> DeviceBackend::get() {
  MutexLock lock(&mu_);
  return backend_;
}

std::shared_ptr<ResultMemory> DeviceBackend::results() {
  MutexLock lock(&mu_);
  return results_;
}

bool DeviceBackend::HoldsGate() {
  const std::shared_ptr<NcclBackend> made = get();
  return made != nullptr && made->HoldsGate();
}

absl::Status DeviceBackend::Make(const std::atomic<bool>& aborted) {
  if (get() != nullptr) return absl::OkStatus();
  COORDD_ASSIGN_OR_RETURN(runtime_, access_.Nccl());
  runtime_->device->OwnThisThread();
  NcclBackendOptions options = options_.backend;
  options.device = agreements_.device();
  options.window = agreements_.window();
  auto made = std::make_shared<NcclBackend>(runtime_, clock_, options);
  COORDD_RETURN_IF_ERROR(made->Connect(layout_, store_, absl::InfiniteFuture()));
  {
    MutexLock lock(&mu_);
    backend_ = made;
    results_ = std::make_shared<ResultMemory>(runtime_->device, ResultMemory::Frees::kWhenTold);
  }
  if (aborted.load(std::memory_order_acquire)) made->Abort();
  return absl::OkStatus();
}

absl::Status DeviceBackend::Define(ProcessSetId process_set) {
  if (defined_.count(process_set) > 0) return absl::OkStatus();
  const std::shared_ptr<NcclBackend> backend = get();
  // It ends behind its last batch.
  const std::vector<int32_t> members = agreements_.MembersOf(process_set);
  if (ToInt(process_set) != 0) {
    std::vector<Rank> ranks;
    for (int32_t rank : members) ranks.push_back(Rank{rank});
    COORDD_RETURN_IF_ERROR(backend->DefineGroup(process_set, ranks));
  }
  defined_.insert(process_set);
  const Decision decision = agreements_.DecisionOf(process_set);
  if (ToInt(process_set) == 0) UseKept(decision, *backend);
  if (!decision.has_value() || !decision->ok()) return absl::OkStatus();
  if ((*decision)->windows) backend->UseWindow(process_set);
  if ((*decision)->direct) backend->UseDirect(process_set);
  if (!(*decision)->registers) backend->LeaveUnregistered(process_set);
  if ((*decision)->ranks_per_node > 0)
    UseHierarchy(process_set, (*decision)->ranks_per_node, members, *backend);
  return absl::OkStatus();
}

void DeviceBackend::UseKept(const Decision& decision, NcclBackend& backend) {
  const bool shrinks = decision.has_value() && decision->ok() && !(*decision)->excluded.empty();
  const std::optional<KeptClaim> claim = access_.ClaimOfKept(backend.device());
  std::unique_ptr<KeptCommunicator> kept = access_.TakeKept();
  const bool agreed_on =
      shrinks && claim.has_value() && claim->generation == (*decision)->shrinks_of;
  if (kept != nullptr && !agreed_on) backend.Discard(std::move(kept));
  if (!shrinks) return;
  const std::vector<int32_t>& excluded = (*decision)->excluded;
  backend.UseShrink({std::move(kept), std::vector<int>(excluded.begin(), excluded.end())});
}

void DeviceBackend::UseHierarchy(ProcessSetId process_set, int32_t ranks_per_node,
                                 absl::Span<const int32_t> ranks, NcclBackend& backend) {
  const auto self = std::find(ranks.begin(), ranks.end(), ToInt(layout_.self())) - ranks.begin();
  std::vector<int32_t> across;  // in this rank's place on each node
  for (auto at = static_cast<size_t>(self % ranks_per_node); at < ranks.size();
       at += static_cast<size_t>(ranks_per_node)) {
    across.push_back(ranks[at]);
  }
  Hierarchy how;
  how.ranks_per_node = ranks_per_node;
  how.lane = ExchangeLane(process_set);
  how.exchange = exchanges_.exchange;
  exchanges_.open(how.lane, std::make_shared<const std::vector<int32_t>>(std::move(across)));
  with_exchanges_.insert(process_set);
  backend.UseHierarchy(process_set, std::move(how));
}

void DeviceBackend::EndGroup(ProcessSetId process_set) {
  if (defined_.erase(process_set) == 0) return;
  if (const std::shared_ptr<NcclBackend> made = get()) made->EndGroup(process_set);
  if (with_exchanges_.erase(process_set) > 0) exchanges_.end(ExchangeLane(process_set));
}

}  // namespace coordd
