#include "worker/gpu/plane/device_plane.h"

#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "worker/gpu/nccl/known_memory.h"
#include "worker/gpu/nccl/nccl_route.h"
#include "worker/gpu/plane/device_buffers.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

// Of a batch on the device: not worth a word before.
constexpr absl::Duration kWorthAWord = absl::Seconds(1);

absl::Status AbortedStatus() { return absl::AbortedError("the data plane was stopped"); }

}  // namespace

DevicePlane::DevicePlane(DevicePlaneOptions options, const GroupLayout& layout, GpuAccess& access,
                         Store& store, Clock& clock, Hooks hooks)
    : options_(std::move(options)),
      access_(access),
      clock_(clock),
      hooks_(std::move(hooks)),
      inbox_(kInboxCapacity, clock),
      agreements_(options_, layout, access, store, clock, report_,
                  [this](ProcessSetId process_set) { OnDecision(process_set); }),
      graphs_(layout, access, store, clock, options_.backend,
              {[this](int32_t device) { return agreements_.ClaimDevice(device); },
               [this](ProcessSetId process_set) {
                 agreements_.Begin(process_set);
                 return agreements_.DecisionOf(process_set);
               },
               [this] { Abort(); }}),
      backend_(options_, layout, access, store, clock, agreements_,
               {hooks_.open_exchanges, hooks_.end_exchanges, hooks_.exchange}),
      scratch_(options_.BufferBytes()) {}

DevicePlane::~DevicePlane() {
  Stop();
  backend_.End();
}

// --- on callers' threads
// -------------------------------------------------------------------------

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
    if (!report_.knows_device()) {
      report_.NoteNccl(nccl);
      report_.NoteDevice(devices->identity(job.device), options_.mps);
    }
    if (!FitsNccl(job.spec())) continue;
    // A send and its receive are a set of their own, which is not known yet.
    std::optional<absl::StatusOr<DeviceDecision>> decision;
    if (nccl.ok()) COORDD_RETURN_IF_ERROR(agreements_.ClaimDevice(job.device));
    if (!IsPairwise(job.spec().kind)) {
      agreements_.Begin(job.spec().process_set);
      decision = agreements_.DecisionOf(job.spec().process_set);
    }
    const bool staged =
        decision.has_value() && decision->ok() && !CarriedByNccl(job.spec(), **decision);
    job.direct = nccl.ok() && !staged;
  }
  return absl::OkStatus();
}

void DevicePlane::WarnOnce(absl::string_view why) {
  if (warned_.exchange(true)) return;
  COORDD_LOG(kWarning, "tensors on GPUs travel through host memory: ", why);
}

// At the end of a generation it may say no more than that.
void DevicePlane::OnDecision(ProcessSetId process_set) {
  auto decision = agreements_.DecisionOf(process_set);
  if (decision.has_value() && !aborted_.load(std::memory_order_acquire)) {
    // Status tells of the others, which may be many: a pair for each two
    // neighbours.
    if (decision->ok() && ToInt(process_set) == 0 && !(*decision)->why_flat.empty()) {
      COORDD_LOG(kWarning, "allreduces on GPUs are flat, not hierarchical, since ",
                 (*decision)->why_flat);
    }
    report_.NoteDecision(process_set, *std::move(decision));
  }
  inbox_.Push(LookAgain{});
}

// --- on other threads of the runtime
// -------------------------------------------------------------

void DevicePlane::EnsureThread() {
  thread_.Ensure("device", [this] { Run(); });
}

void DevicePlane::Launch(std::unique_ptr<BatchJob> batch) {
  EnsureThread();
  Input input = Planned{std::move(batch)};
  if (!inbox_.Push(std::move(input)))
    Finish(std::move(std::get<Planned>(input).batch), AbortedStatus());
}

void DevicePlane::HostDone(std::unique_ptr<BatchJob> batch) {
  Input input = Returned{std::move(batch)};
  if (!inbox_.Push(std::move(input)))
    Finish(std::move(std::get<Returned>(input).batch), AbortedStatus());
}

void DevicePlane::DefineGroup(ProcessSetId process_set, RankList ranks) {
  graphs_.DefineGroup(process_set, ranks);
  agreements_.DefineGroup(process_set, std::move(ranks));
}

void DevicePlane::EndGroup(ProcessSetId process_set) {
  const bool agreed = agreements_.EndGroup(process_set);
  graphs_.EndGroup(process_set);
  if (!thread_.runs() && !agreed) return;
  EnsureThread();
  inbox_.Push(GroupEnded{process_set});
}

void DevicePlane::EndLane(LaneId lane) {
  if (thread_.runs() && inbox_.Push(LaneEnded{lane})) return;
  hooks_.end_lane(lane);
}

void DevicePlane::Abort() {
  const bool first = !aborted_.exchange(true, std::memory_order_acq_rel);
  graphs_.Abort();
  if (const std::shared_ptr<NcclBackend> made = backend_.get()) {
    made->Abort();
    if (std::unique_ptr<KeptCommunicator> kept = made->TakeKept())
      access_.Keep(std::move(kept), options_.generation);
  }
  if (first && (backend_.HoldsGate() || graphs_.HoldsGate())) {
    COORDD_LOG(kInfo,
               "streams of the GPU are held until the program has called "
               "coordd; after ",
               absl::FormatDuration(options_.backend.gate_limit),
               " (COORDD_GPU_GATE_LIMIT) CUDA fails in this process");
  }
  inbox_.Push(LookAgain{});
  if (told_of_the_end_.load(std::memory_order_acquire)) Told();
}

void DevicePlane::TellOfDevice(absl::Time now, v1::Heartbeat& heartbeat) {
  coordd::TellOfDevice(report_.progress().Launched(now - kWorthAWord, kMaxDeviceBatches), now,
                       heartbeat);
}

int64_t DevicePlane::result_bytes() {
  const std::shared_ptr<ResultMemory> made = backend_.results();
  return made == nullptr ? 0 : made->bytes();
}

int64_t DevicePlane::registered_bytes() {
  const std::shared_ptr<NcclBackend> made = backend_.get();
  return made == nullptr ? 0 : made->registered_bytes();
}

absl::StatusOr<DeviceDecision> DevicePlane::AwaitDecision(ProcessSetId process_set, int32_t device,
                                                          absl::Time deadline) {
  if (access_.Nccl().ok()) COORDD_RETURN_IF_ERROR(agreements_.ClaimDevice(device));
  agreements_.Begin(process_set);
  IdleWait idle(1, 1);
  std::optional<absl::StatusOr<DeviceDecision>> decision;
  while (!(decision = agreements_.DecisionOf(process_set)).has_value()) {
    if (aborted_.load(std::memory_order_acquire)) return AbortedStatus();
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "not all ranks of process set ", ToInt(process_set),
          " have registered memory of a device, or used any, so that they agree on NCCL"));
    }
    idle.Wait();
  }
  return *std::move(decision);
}

absl::StatusOr<int64_t> DevicePlane::AwaitTurn(ProcessSetId process_set, int64_t number,
                                               int32_t device, absl::Span<std::byte> memory,
                                               absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceRuntime> devices, access_.Devices());
  COORDD_RETURN_IF_ERROR(CheckMemory(*devices, device, memory));
  DeviceRegistrations& registrations = backend_.registrations();
  COORDD_RETURN_IF_ERROR(registrations.Give(process_set, number, memory));
  IdleWait idle(1, 1);
  std::optional<int64_t> windows;
  while (!(windows = registrations.TakeTurn(process_set, number)).has_value()) {
    if (aborted_.load(std::memory_order_acquire)) return AbortedStatus();
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("other memory is still being registered, or unregistered, in process set ",
                       ToInt(process_set)));
    }
    idle.Wait();
  }
  return *windows;
}

absl::StatusOr<bool> DevicePlane::AwaitMemory(ProcessSetId process_set, int32_t device,
                                              absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(const DeviceDecision decision,
                          AwaitDecision(process_set, device, deadline));
  if (!decision.nccl) {
    return absl::UnimplementedError(absl::StrCat(
        "memory is registered with NCCL, which not all ranks have: ", decision.why_not));
  }
  if (!decision.registers) {
    return absl::UnimplementedError(
        "not all ranks register memory with NCCL: COORDD_GPU_REGISTER is 0 on one, or its NCCL is "
        "older than 2.19");
  }
  return decision.windows;
}

absl::Status DevicePlane::ReleaseMemory(ProcessSetId process_set, const std::byte* memory,
                                        absl::Time deadline) {
  DeviceRegistrations& registrations = backend_.registrations();
  COORDD_ASSIGN_OR_RETURN(const DeviceRegistrations::Leaving leaving,
                          registrations.Remove(process_set, memory));
  const bool closed =
      leaving.first && !inbox_.Push(MemoryReleased{process_set, leaving.region, leaving.gone});
  IdleWait idle(1, 1);
  while (true) {
    const bool aborted = closed || aborted_.load(std::memory_order_acquire);
    const bool released = aborted || leaving.gone->load(std::memory_order_acquire);
    // Communicators that end let go of it when they have ended.
    if (released && !KnownMemory::OfProcess().Knows(process_set, leaving.region)) break;
    // They end when the program knows.
    if (aborted && backend_.HoldsGate() && !told_of_the_end_.load(std::memory_order_acquire))
      return AbortedStatus();
    if (clock_.Now() >= deadline) {
      return absl::DeadlineExceededError(
          released ? "NCCL has not ended the communicators that know the memory yet"
                   : "the device is not through with what was launched before");
    }
    idle.Wait();
  }
  registrations.Forget(process_set, leaving);
  return absl::OkStatus();
}

void DevicePlane::Told() {
  graphs_.Told();
  if (const std::shared_ptr<NcclBackend> made = backend_.get()) made->PassGate();
}

void DevicePlane::ToldOfTheEnd() {
  told_of_the_end_.store(true, std::memory_order_release);
  Told();
}

void DevicePlane::Stop() {
  std::thread thread = thread_.Stop();
  const DeviceAgreements::Ending agreements = agreements_.Stop();
  graphs_.End();
  Abort();
  inbox_.Close();
  if (thread.joinable()) thread.join();
}

void DevicePlane::Finish(std::unique_ptr<BatchJob> batch, absl::Status status, absl::Time now) {
  // What went wrong first is what counts.
  if (batch->status.ok()) batch->status = std::move(status);
  batch->times.ended = now;
  hooks_.finished(std::move(batch));
}

}  // namespace coordd
