#include "worker/gpu/nvml/gpu_watch.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/log.h"
#include "common/base/thread.h"
#include "worker/gpu/nvml/nvml_gpu.h"
#include "worker/gpu/nvml/nvml_words.h"

namespace coordd {
namespace {

// NVML takes milliseconds; with a broken driver it may never return.
constexpr absl::Duration kSilentAfter = absl::Seconds(10);

}  // namespace

struct GpuWatch::Shared {
  Shared(Clock& clock_in, std::string library_in)
      : clock(clock_in), library(std::move(library_in)) {}

  void Run();
  // What is to be asked now; empty: the end.
  std::string AwaitQuestion();
  void Note(v1::GpuHealth health, const NvmlGpu& gpu, const std::string& uuid);

  // Constant after construction.
  Clock& clock;
  const std::string library;

  // Guarded by mu.
  mutable Mutex mu;
  CondVar changed;
  std::string uuid ABSL_GUARDED_BY(mu);
  bool asked ABSL_GUARDED_BY(mu) = false;
  bool reading ABSL_GUARDED_BY(mu) = false;  // since read_at
  bool stop ABSL_GUARDED_BY(mu) = false;
  bool ended ABSL_GUARDED_BY(mu) = false;
  absl::Time read_at ABSL_GUARDED_BY(mu) = absl::InfinitePast();
  std::optional<v1::GpuHealth> latest ABSL_GUARDED_BY(mu);

  // Touched by the thread.
  int32_t last_xid = 0;
  absl::Time last_xid_at = absl::InfinitePast();
  std::string trouble;  // that was logged last
};

std::string GpuWatch::Shared::AwaitQuestion() {
  MutexLock lock(&mu);
  reading = false;
  while (!stop && !asked) changed.Wait(&mu);
  asked = false;
  if (stop) return "";
  reading = true;
  read_at = clock.Now();
  return uuid;
}

void GpuWatch::Shared::Run() {
  std::unique_ptr<NvmlGpu> gpu;
  std::string opened;
  for (std::string wanted = AwaitQuestion(); !wanted.empty(); wanted = AwaitQuestion()) {
    if (wanted != opened) {
      opened = wanted;
      gpu.reset();
      auto found = NvmlGpu::Open(library, wanted);
      if (found.ok()) {
        gpu = *std::move(found);
      } else {
        COORDD_LOG(kInfo, "how ", wanted, " is cannot be told: ", found.status().message());
      }
    }
    if (gpu != nullptr) Note(gpu->Read(), *gpu, wanted);
  }
  gpu.reset();
  MutexLock lock(&mu);
  ended = true;
  changed.NotifyAll();
}

void GpuWatch::Shared::Note(v1::GpuHealth health, const NvmlGpu& gpu,
                            const std::string& asked_for) {
  for (const uint64_t xid : gpu.TakeXids()) {
    COORDD_LOG(kError, "GPU ", gpu.uuid(), ": its driver has reported ", XidText(xid));
    last_xid = static_cast<int32_t>(std::min<uint64_t>(xid, std::numeric_limits<int32_t>::max()));
    last_xid_at = clock.Now();
  }
  if (health.trouble() != std::exchange(trouble, health.trouble()) && !trouble.empty())
    COORDD_LOG(kError, "GPU ", gpu.uuid(), ": NVML says: ", trouble);
  if (last_xid != 0) {
    health.set_last_xid(last_xid);
    health.set_last_xid_seconds(absl::ToDoubleSeconds(clock.Now() - last_xid_at));
  }
  MutexLock lock(&mu);
  if (uuid == asked_for) latest = std::move(health);
}

GpuWatch::GpuWatch(Clock& clock, std::string library)
    : shared_(std::make_shared<Shared>(clock, std::move(library))) {}

GpuWatch::~GpuWatch() {
  bool ended = false;
  {
    MutexLock lock(&shared_->mu);
    if (!thread_.joinable()) return;
    shared_->stop = true;
    shared_->changed.NotifyAll();
    ended = Clock::Real().Await(
        &shared_->mu, &shared_->changed,
        [shared = shared_.get()] {
          shared->mu.AssertHeld();
          return shared->ended;
        },
        Clock::Real().Now() + kEndLimit);
  }
  if (ended) {
    thread_.join();
    return;
  }
  COORDD_LOG(kWarning, "NVML has not answered for ", absl::FormatDuration(kEndLimit),
             ": the thread that asked it stays behind");
  // Never destroyed, so that it stays somebody's.
  static_cast<void>(std::make_unique<std::thread>(std::move(thread_)).release());
}

void GpuWatch::Watch(const std::string& uuid) {
  MutexLock lock(&shared_->mu);
  if (uuid.empty() || uuid == shared_->uuid) return;
  shared_->uuid = uuid;
  shared_->latest.reset();
  shared_->asked = true;
  shared_->changed.NotifyAll();
  if (!thread_.joinable())
    thread_ = StartThread("gpu-health", [shared = shared_] { shared->Run(); });
}

void GpuWatch::Ask() {
  MutexLock lock(&shared_->mu);
  if (!thread_.joinable() || shared_->clock.Now() - shared_->read_at < kReadEvery) return;
  shared_->asked = true;
  shared_->changed.NotifyAll();
}

std::optional<v1::GpuHealth> GpuWatch::Latest() const {
  MutexLock lock(&shared_->mu);
  std::optional<v1::GpuHealth> latest = shared_->latest;
  const absl::Duration age = shared_->clock.Now() - shared_->read_at;
  if (!latest.has_value() || !shared_->reading || age < kSilentAfter) return latest;
  // What it was before is no news.
  v1::GpuHealth silent;
  silent.set_uuid(latest->uuid());
  silent.set_trouble("NVML does not answer");
  silent.set_last_xid(latest->last_xid());
  if (latest->last_xid() != 0)
    silent.set_last_xid_seconds(latest->last_xid_seconds() + absl::ToDoubleSeconds(age));
  return silent;
}

}  // namespace coordd
