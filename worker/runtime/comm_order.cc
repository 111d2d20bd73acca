#include "worker/runtime/comm_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"

namespace coordd {
namespace {

// Calls of a comm that were started and have not ended: a program that is so far ahead waits for
// none of them.
constexpr int32_t kMaxOpen = 1 << 20;
// Whoever waits executes what is before its own call for no longer than this: then a thread does,
// for which waking one takes no time any more, and the waiter hears of an end of its own work.
constexpr absl::Duration kDriveMost = absl::Milliseconds(50);

}  // namespace

absl::Status CommOrder::Enter() {
  COORDD_RETURN_IF_ERROR(fork_guard_.Check());
  if (!in_call_.exchange(true, std::memory_order_acquire)) return absl::OkStatus();
  return execution_.Named(
      absl::FailedPreconditionError("another thread is in a call, expected one thread at a time"));
}

absl::Status CommOrder::Run(const CommCall& call) {
  COORDD_RETURN_IF_ERROR(Enter());
  if (open_.load(std::memory_order_acquire) == 0) {
    absl::Status status = execution_.Run(call);
    Leave();
    return status;
  }
  const absl::StatusOr<std::shared_ptr<Work>> work = Queue(call, /*calls_thread=*/false);
  Leave();
  COORDD_RETURN_IF_ERROR(work.status());
  return (*work)->Wait(absl::InfiniteFuture());
}

absl::StatusOr<std::shared_ptr<Work>> CommOrder::RunFor(const CommCall& call, absl::Duration most) {
  COORDD_RETURN_IF_ERROR(Enter());
  if (open_.load(std::memory_order_acquire) == 0) {
    std::optional<absl::Status> ended = execution_.Begin(call);
    if (ended->ok()) ended = execution_.Go(most);
    std::shared_ptr<Work> work = ended.has_value() ? nullptr : QueueBegun(call);
    Leave();
    if (work != nullptr) return work;
    COORDD_RETURN_IF_ERROR(*ended);
    return work;
  }
  absl::StatusOr<std::shared_ptr<Work>> work = Queue(call, /*calls_thread=*/true);
  Leave();
  COORDD_RETURN_IF_ERROR(work.status());
  const absl::Status status = (*work)->Wait(execution_.needs().clock->Now() + most);
  if (!(*work)->done()) return work;
  COORDD_RETURN_IF_ERROR(status);
  return nullptr;
}

absl::StatusOr<std::shared_ptr<Work>> CommOrder::Start(const CommCall& call) {
  COORDD_RETURN_IF_ERROR(execution_.Check(call));
  COORDD_RETURN_IF_ERROR(Enter());
  absl::StatusOr<std::shared_ptr<Work>> work = Queue(call, /*calls_thread=*/true);
  Leave();
  return work;
}

std::shared_ptr<Work> CommOrder::NewWork(const CommCall& call) {
  std::optional<SharedSpec>& spec = specs_[static_cast<size_t>(call.kind)];
  if (!spec.has_value()) {
    TensorSpec made;
    made.name = absl::StrCat("comm ", execution_.needs().name);
    made.kind = call.kind;
    spec = SharedSpec(std::move(made));
  }
  auto work = std::make_shared<Work>(*spec, *execution_.needs().clock);
  work->DriveBy([order = weak_from_this()](const Work& waited, absl::Time deadline) {
    if (const auto alive = order.lock()) alive->Drive(waited, deadline);
  });
  return work;
}

absl::StatusOr<std::shared_ptr<Work>> CommOrder::Queue(const CommCall& call, bool calls_thread) {
  MutexLock lock(&mu_);
  if (open_.load(std::memory_order_relaxed) >= kMaxOpen) {
    return execution_.Named(absl::ResourceExhaustedError(
        absl::StrCat(kMaxOpen, " calls were started and have not ended")));
  }
  std::shared_ptr<Work> work = NewWork(call);
  calls_.push_back({call, work});
  open_.fetch_add(1, std::memory_order_relaxed);
  if (calls_thread) HandOver();
  return work;
}

std::shared_ptr<Work> CommOrder::QueueBegun(const CommCall& call) {
  MutexLock lock(&mu_);
  std::shared_ptr<Work> work = NewWork(call);
  calls_.push_front({call, work});
  begun_ = true;
  open_.fetch_add(1, std::memory_order_relaxed);
  HandOver();  // its caller need not come back
  return work;
}

void CommOrder::HandOver() {
  if (taken_ || over_ || calls_.empty()) return;
  if (free_ > 0) return changed_.NotifyOne();
  threads_.push_back(StartThread("comm", [this] { Loop(); }));
  ++free_;
}

void CommOrder::Drive(const Work& work, absl::Time deadline) {
  const bool for_ever = deadline == absl::InfiniteFuture();
  bool in_time = true;
  while (in_time && !work.done()) {
    {
      MutexLock lock(&mu_);
      if (taken_ || over_ || calls_.empty()) return;
      taken_ = true;
    }
    absl::Duration most = kDriveMost;
    if (!for_ever) most = std::min(most, deadline - execution_.needs().clock->Now());
    in_time = ExecuteFirst(most, Who::kWaiter);
  }
  MutexLock lock(&mu_);
  HandOver();
}

void CommOrder::Loop() {
  while (true) {
    {
      MutexLock lock(&mu_);
      while (!over_ && (taken_ || calls_.empty())) changed_.Wait(&mu_);
      if (over_) return;
      taken_ = true;
    }
    ExecuteFirst(absl::InfiniteDuration(), Who::kThread);
  }
}

bool CommOrder::ExecuteFirst(absl::Duration most, Who who) {
  const Started* first = nullptr;
  {
    MutexLock lock(&mu_);
    first = &calls_.front();  // stays where it is when others come behind it
  }
  std::optional<absl::Status> ended;
  if (!begun_) {
    ended = execution_.Begin(first->call);
    begun_ = ended->ok();
  }
  if (begun_) ended = execution_.Go(most);
  // Before the next one begins: when a call has ended, so have the works before it.
  Work::Callbacks callbacks;
  if (ended.has_value()) callbacks = first->work->CompleteAlone(*ended, ResultOf(first->call));
  Started over;  // ends without the lock
  {
    MutexLock lock(&mu_);
    taken_ = false;
    if (over_) changed_.NotifyAll();
    if (!ended.has_value()) return false;
    begun_ = false;
    over = std::move(calls_.front());
    calls_.pop_front();
    open_.fetch_sub(1, std::memory_order_release);
  }
  if (!callbacks.empty()) CallBack(callbacks, *ended, who);
  return true;
}

void CommOrder::CallBack(const Work::Callbacks& callbacks, const absl::Status& status, Who who) {
  {
    MutexLock lock(&mu_);
    if (who == Who::kThread) --free_;
    HandOver();
  }
  for (const auto& callback : callbacks) callback(status);
  MutexLock lock(&mu_);
  if (who == Who::kThread) ++free_;
}

WorkResult CommOrder::ResultOf(const CommCall& call) const {
  WorkResult result;
  result.generation = execution_.needs().generation;
  result.size = execution_.size();
  const int64_t blocks = FirstDimensionMayDiffer(call.kind) ? execution_.size() : 1;
  int64_t count = call.count * blocks;
  if (call.splits != nullptr)
    count = std::accumulate(call.splits->received.begin(), call.splits->received.end(), int64_t{0});
  result.output_shape = {count};
  result.output_bytes = count * SizeOf(call.dtype);
  return result;
}

void CommOrder::End() {
  std::deque<Started> cancelled;
  {
    MutexLock lock(&mu_);
    over_ = true;
    changed_.NotifyAll();
    const size_t kept = !calls_.empty() && (taken_ || begun_) ? 1 : 0;
    for (size_t i = kept; i < calls_.size(); ++i) cancelled.push_back(std::move(calls_[i]));
    calls_.resize(kept);
  }
  // At once: what has begun may wait for members that wait for whoever hears of this.
  for (const Started& call : cancelled) {
    call.work->Complete(
        execution_.Named(absl::CancelledError("it was freed before this call began")), {});
  }
  std::vector<std::thread> threads;
  bool has_begun = false;
  {
    MutexLock lock(&mu_);
    while (taken_) changed_.Wait(&mu_);
    has_begun = taken_ = !calls_.empty();
    threads.swap(threads_);
  }
  // The others write to what it was given until it has ended.
  if (has_begun) ExecuteFirst(absl::InfiniteDuration(), Who::kWaiter);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace coordd
