#include "worker/gpu/plane/device_plane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/machine/build_info.h"
#include "worker/gpu/nccl/nccl_route.h"
#include "worker/gpu/plane/device_buffers.h"
#include "worker/interfaces/lanes.h"

namespace coordd {
namespace {

// Padding between the tensors of a batch, as the executor's.
constexpr int64_t kPaddingBytes = int64_t{1} << 20;

absl::Status AbortedStatus() { return absl::AbortedError("the data plane was stopped"); }

}  // namespace

DevicePlane::DevicePlane(DevicePlaneOptions options, const GroupLayout& layout, GpuAccess& access,
                         Store& store, Clock& clock, Hooks hooks)
    : options_(std::move(options)),
      layout_(layout),
      access_(access),
      store_(store),
      clock_(clock),
      hooks_(std::move(hooks)),
      inbox_(kInboxCapacity, clock),
      calls_(kInboxCapacity, clock),
      graphs_(layout, access, store, clock, options_.backend,
              {[this](int32_t device) { return ClaimDevice(device); },
               [this](ProcessSetId process_set) {
                 BeginAgreement(process_set);
                 return DecisionOf(process_set);
               },
               [this] { Abort(); }}) {}

DevicePlane::~DevicePlane() {
  Stop();
  std::shared_ptr<NcclBackend> ending;
  {
    MutexLock lock(&mu_);
    ending.swap(backend_);
  }
  ending.reset();
  kept_.clear();
  if (const auto made = results()) made->Close();
}

int64_t DevicePlane::FusionBufferBytes() const {
  return options_.fusion_buffer_bytes + kPaddingBytes;
}

// --- on callers' threads -------------------------------------------------------------------------

absl::Status DevicePlane::ClaimDevice(int32_t device) {
  MutexLock lock(&mu_);
  if (device_ < 0) device_ = device;
  if (device_ == device) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("device ", device, ", expected ", device_,
                   ": this rank's collectives are there, since its first tensor was"));
}

absl::Status DevicePlane::Admit(absl::Span<TensorJob> jobs, size_t* failed) {
  *failed = 0;
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceRuntime> devices, access_.Devices());
  const absl::StatusOr<std::shared_ptr<NcclRuntime>> nccl = access_.Nccl();
  if (!nccl.ok()) WarnOnce(nccl.status().message());
  std::map<uintptr_t, std::shared_ptr<DeviceEvent>> recorded;  // of this call
  for (size_t i = 0; i < jobs.size(); ++i) {
    TensorJob& job = jobs[i];
    if (job.device < 0) continue;
    *failed = i;
    COORDD_RETURN_IF_ERROR(CheckBuffers(*devices, job));
    std::shared_ptr<DeviceEvent>& ready = recorded[job.stream];
    if (ready == nullptr) {
      COORDD_ASSIGN_OR_RETURN(
          ready, events_.Record(devices, job.device, reinterpret_cast<CudaStream>(job.stream)));
    }
    job.ready = ready;
    if (!noted_device_.load(std::memory_order_relaxed)) NoteDevice(*devices, job.device, nccl);
    if (!FitsNccl(job.spec())) continue;
    // A send and its receive are a set of their own, which is not known yet.
    std::optional<absl::StatusOr<DeviceDecision>> decision;
    if (nccl.ok()) COORDD_RETURN_IF_ERROR(ClaimDevice(job.device));
    if (!IsPairwise(job.spec().kind)) {
      BeginAgreement(job.spec().process_set);
      decision = DecisionOf(job.spec().process_set);
    }
    const bool staged =
        decision.has_value() && decision->ok() && !CarriedByNccl(job.spec(), **decision);
    job.direct = nccl.ok() && !staged;
  }
  return absl::OkStatus();
}

DeviceClaim DevicePlane::Claim() {
  DeviceClaim claim;
  claim.rank = ToInt(layout_.self());
  claim.host = options_.host;
  claim.machine = options_.machine;
  claim.rdma = options_.network.rdma;
  claim.rdma_for_host = options_.network.unused_rdma && options_.host_uses_rdma;
  claim.algorithm = options_.rules.algorithm;
  const MaybeNccl nccl = access_.Nccl();
  if (!nccl.ok()) {
    claim.why_not = std::string(nccl.status().message());
    MutexLock lock(&mu_);
    NoteNccl(nccl);
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
  if (options_.symmetric_windows) claim.window_bytes = WindowBytes(*nccl, device);
  claim.gpu_direct = network.rdma && network.gpu_direct &&
                     (network.peer_memory || (network.dma_buf && own.dma_buf));
  for (int32_t other = 0; other < devices.device_count(); ++other) {
    if (other == device) continue;
    claim.neighbours.push_back(
        {devices.identity(other).uuid, network.peer_to_peer && devices.HasNvLink(device, other)});
  }
  NoteDevice(devices, device, nccl);
  return claim;
}

// Before the ranks agree: a rank that has no memory for it must not be waited for later.
int64_t DevicePlane::WindowBytes(const std::shared_ptr<NcclRuntime>& nccl, int32_t device) {
  MutexLock lock(&mu_);
  if (!window_.has_value()) {
    window_.emplace(nullptr);
    if (NcclMemory::Available(nccl->nccl.functions)) {
      auto made = NcclMemory::Allocate(nccl, device, FusionBufferBytes());
      if (made.ok()) window_ = *std::move(made);
      if (!made.ok()) COORDD_LOG(kWarning, "no symmetric windows: ", made.status().message());
    } else {
      COORDD_LOG(kWarning, "no symmetric windows: NCCL is ", NcclVersionText(nccl->nccl.version),
                 ", expected 2.27 or later");
    }
  }
  return *window_ == nullptr ? 0 : static_cast<int64_t>((*window_)->span().size());
}

void DevicePlane::BeginAgreement(ProcessSetId process_set) {
  DeviceAgreement::Place place{process_set, ToInt(layout_.self()), layout_.size()};
  {
    MutexLock lock(&mu_);
    if (agreements_.count(process_set) > 0) return;
    if (ToInt(process_set) != 0) {
      const auto set = sets_.find(process_set);
      if (set == sets_.end()) return;  // it has been removed
      const std::vector<int32_t>& ranks = *set->second;
      const auto self = std::lower_bound(ranks.begin(), ranks.end(), place.index);
      place.index = static_cast<int32_t>(self - ranks.begin());
      place.size = static_cast<int32_t>(ranks.size());
    }
  }
  DeviceClaim claim = Claim();
  if (ToInt(process_set) == 0) {
    MutexLock lock(&mu_);
    if (!claim.nccl.empty()) claim.kept = access_.ClaimOfKept(device_);
  }
  MutexLock lock(&mu_);
  if (stopped_ || agreements_.count(process_set) > 0) return;
  DeviceRules rules = options_.rules;
  rules.exchanges = ToInt(process_set) < kMaxExchangeSets;
  agreements_[process_set] = std::make_unique<DeviceAgreement>(place, std::move(claim), rules,
                                                               store_, clock_, [this, process_set] {
                                                                 NoteDecision(process_set);
                                                                 Put(LookAgain{});
                                                               });
}

std::optional<absl::StatusOr<DeviceDecision>> DevicePlane::DecisionOf(ProcessSetId process_set) {
  MutexLock lock(&mu_);
  const auto found = agreements_.find(process_set);
  if (found == agreements_.end()) return std::nullopt;
  return found->second->decision();
}

void DevicePlane::WarnOnce(absl::string_view why) {
  if (warned_.exchange(true)) return;
  COORDD_LOG(kWarning, "tensors on GPUs travel through host memory: ", why);
}

// --- what coordd is told ------------------------------------------------------------------------

void DevicePlane::NoteNccl(const MaybeNccl& nccl) {
  const std::string version = nccl.ok() ? NcclVersionText((*nccl)->nccl.version) : "";
  const std::string why_not(nccl.status().message());
  if (facts_.nccl == version && facts_.no_nccl == why_not) return;
  facts_.nccl = version;
  facts_.no_nccl = why_not;
  ++facts_version_;
}

void DevicePlane::NoteDevice(const DeviceRuntime& devices, int32_t device, const MaybeNccl& nccl) {
  MutexLock lock(&mu_);
  NoteNccl(nccl);
  if (facts_.device.has_value()) return;
  facts_.device = devices.identity(device);
  ++facts_version_;
  noted_device_.store(true, std::memory_order_relaxed);
}

void DevicePlane::NoteDecision(ProcessSetId process_set) {
  auto decision = DecisionOf(process_set);
  MutexLock lock(&mu_);
  // At the end of a generation it may say no more than that.
  if (!decision.has_value() || aborted_.load(std::memory_order_acquire)) return;
  // Status tells of the others, which may be many: a pair for each two neighbours.
  if (decision->ok() && ToInt(process_set) == 0 && !(*decision)->why_flat.empty()) {
    COORDD_LOG(kWarning, "allreduces on GPUs are flat, not hierarchical, since ",
               (*decision)->why_flat);
  }
  facts_.decisions.insert_or_assign(process_set, *std::move(decision));
  ++facts_version_;
}

void DevicePlane::NoteNetPlugin() {
  std::string plugin = LoadedNetPlugin(options_.environment);
  if (plugin.empty()) return;
  MutexLock lock(&mu_);
  facts_.net_plugin = std::move(plugin);
  ++facts_version_;
}

std::optional<v1::DeviceUse> DevicePlane::UseBeyond(int64_t* told) {
  MutexLock lock(&mu_);
  if (*told == facts_version_) return std::nullopt;
  *told = facts_version_;
  return DescribeDeviceUse(facts_);
}

// --- on other threads of the runtime -------------------------------------------------------------

void DevicePlane::EnsureThread() {
  MutexLock lock(&mu_);
  if (stopped_ || thread_.joinable()) return;
  thread_ = StartThread("device", [this] { Run(); });
}

bool DevicePlane::Put(Input&& input) {
  if (!inbox_.PushUnbounded(std::move(input))) return false;
  calls_.PushUnbounded(Call{});
  return true;
}

void DevicePlane::Launch(std::unique_ptr<BatchJob> batch) {
  EnsureThread();
  Input input = Planned{std::move(batch)};
  if (!Put(std::move(input))) Finish(std::move(std::get<Planned>(input).batch), AbortedStatus());
}

void DevicePlane::HostDone(std::unique_ptr<BatchJob> batch) {
  Input input = Returned{std::move(batch)};
  if (!Put(std::move(input))) Finish(std::move(std::get<Returned>(input).batch), AbortedStatus());
}

void DevicePlane::DefineGroup(ProcessSetId process_set, RankList ranks) {
  graphs_.DefineGroup(process_set, ranks);
  MutexLock lock(&mu_);
  sets_[process_set] = std::move(ranks);
}

void DevicePlane::EndGroup(ProcessSetId process_set) {
  {
    MutexLock lock(&mu_);
    sets_.erase(process_set);
    graphs_.EndGroup(process_set);
    if (!thread_.joinable() && agreements_.count(process_set) == 0) return;
  }
  EnsureThread();
  Put(GroupEnded{process_set});
}

void DevicePlane::EndLane(LaneId lane) {
  {
    MutexLock lock(&mu_);
    if (thread_.joinable() && Put(LaneEnded{lane})) return;
  }
  hooks_.end_lane(lane);
}

std::shared_ptr<NcclBackend> DevicePlane::backend() {
  MutexLock lock(&mu_);
  return backend_;
}

void DevicePlane::Abort() {
  const bool first = !aborted_.exchange(true, std::memory_order_acq_rel);
  graphs_.Abort();
  if (const std::shared_ptr<NcclBackend> made = backend()) {
    made->Abort();
    if (std::unique_ptr<KeptCommunicator> kept = made->TakeKept())
      access_.Keep(std::move(kept), options_.generation);
  }
  if (first && (HoldsGate() || graphs_.HoldsGate())) {
    COORDD_LOG(kInfo, "streams of the GPU are held until the program has called coordd; after ",
               absl::FormatDuration(options_.backend.gate_limit),
               " (COORDD_GPU_GATE_LIMIT) CUDA fails in this process");
  }
  Put(LookAgain{});
  if (told_of_the_end_.load(std::memory_order_acquire)) Told();
}

std::shared_ptr<ResultMemory> DevicePlane::results() {
  MutexLock lock(&mu_);
  return results_;
}

int64_t DevicePlane::result_bytes() {
  const std::shared_ptr<ResultMemory> made = results();
  return made == nullptr ? 0 : made->bytes();
}

int64_t DevicePlane::registered_bytes() {
  const std::shared_ptr<NcclBackend> made = backend();
  return made == nullptr ? 0 : made->registered_bytes();
}

void DevicePlane::Told() {
  graphs_.Told();
  if (const std::shared_ptr<NcclBackend> made = backend()) made->PassGate();
}

void DevicePlane::ToldOfTheEnd() {
  told_of_the_end_.store(true, std::memory_order_release);
  Told();
}

void DevicePlane::Stop() {
  std::thread thread;
  std::map<ProcessSetId, std::unique_ptr<DeviceAgreement>> agreements;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    thread = std::move(thread_);
    agreements = std::move(agreements_);
    agreements_.clear();
  }
  graphs_.End();
  Abort();
  inbox_.Close();
  calls_.Close();
  if (thread.joinable()) thread.join();
}

void DevicePlane::Finish(std::unique_ptr<BatchJob> batch, absl::Status status) {
  // What went wrong first is what counts.
  if (batch->status.ok()) batch->status = std::move(status);
  batch->times.ended = clock_.Now();
  hooks_.finished(std::move(batch));
}

}  // namespace coordd
