#include "worker/gpu/nccl/stream_calls.h"

#include <iterator>
#include <new>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "worker/base/exact_timers.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

constexpr uint32_t kAwaited = 0;
constexpr uint32_t kCome = 1;  // one byte of four: a word is never seen half written

}  // namespace

StreamCalls::~StreamCalls() { Stop(); }

absl::Status StreamCalls::MakeMemory(CudaStream stream) {
  DeviceRuntime& device = *runtime_->device;
  const auto word_bytes = static_cast<int64_t>(sizeof(uint32_t));
  COORDD_ASSIGN_OR_RETURN(
      DeviceMemory memory,
      DeviceMemory::AllocatePinned(device, device_, (kWords + 1) * sizeof(uint32_t)));
  COORDD_ASSIGN_OR_RETURN(DeviceMemory come, DeviceMemory::Allocate(device, device_, word_bytes));
  auto* const from = new (memory.data() + kWords * sizeof(uint32_t)) uint32_t(kCome);
  COORDD_RETURN_IF_ERROR(CopyAsync(device, device_, come.data(), from, word_bytes, stream));
  memory_.emplace(std::move(memory));
  come_.emplace(std::move(come));
  MutexLock lock(&mu_);
  for (size_t i = 0; i < kWords; ++i) {
    words_[i] = new (memory_->data() + i * sizeof(uint32_t)) std::atomic<uint32_t>(kAwaited);
    free_.push_back(i);
  }
  return absl::OkStatus();
}

absl::Status StreamCalls::After(CudaStream stream, std::function<void()> call) {
  if (!memory_.has_value()) COORDD_RETURN_IF_ERROR(MakeMemory(stream));
  std::atomic<uint32_t>* word = nullptr;
  {
    MutexLock lock(&mu_);
    if (released_) return absl::OkStatus();
    COORDD_CHECK(!free_.empty());
    awaited_.push_back({free_.back(), std::move(call)});
    word = words_[free_.back()];
    free_.pop_back();
    word->store(kAwaited, std::memory_order_relaxed);
    changed_.NotifyAll();
  }
  if (!thread_.joinable()) thread_ = StartThread("nccl-exchange", [this] { Run(); });
  return CopyAsync(*runtime_->device, device_, word, come_->data(), sizeof(uint32_t), stream);
}

bool StreamCalls::Next(std::function<void()>* call) {
  MutexLock lock(&mu_);
  while (!released_ && awaited_.empty()) changed_.Wait(&mu_);
  if (released_) return false;
  Awaited& front = awaited_.front();
  // What the stream has copied before is there, too.
  if (words_[front.word]->load(std::memory_order_acquire) != kCome) return true;
  *call = std::move(front.call);
  free_.push_back(front.word);
  awaited_.pop_front();
  ++under_way_;
  return true;
}

void StreamCalls::Run() {
  UseExactTimers();
  IdleWait idle(1, 1);
  std::function<void()> call;
  while (Next(&call)) {
    if (call) {
      std::exchange(call, nullptr)();
      idle.Reset();
    } else {
      idle.Wait();
    }
  }
}

void StreamCalls::Ended() {
  MutexLock lock(&mu_);
  --under_way_;
  changed_.NotifyAll();
}

void StreamCalls::Release() {
  MutexLock lock(&mu_);
  released_ = true;
  forgotten_.insert(forgotten_.end(), std::make_move_iterator(awaited_.begin()),
                    std::make_move_iterator(awaited_.end()));
  awaited_.clear();
  changed_.NotifyAll();
}

bool StreamCalls::AwaitEnded(Clock& clock, absl::Time deadline) {
  MutexLock lock(&mu_);
  return clock.Await(
      &mu_, &changed_,
      [this] {
        mu_.AssertHeld();
        return under_way_ == 0;
      },
      deadline);
}

void StreamCalls::Stop() {
  Release();
  if (thread_.joinable()) thread_.join();
  std::deque<Awaited> forgotten;  // ends outside of the lock
  MutexLock lock(&mu_);
  forgotten.swap(forgotten_);
}

}  // namespace coordd
