#include "worker/executor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "common/thread.h"
#include "worker/idle_wait.h"

namespace coordd {
namespace {

// Padding between the tensors of a batch of at most fusion_buffer_bytes: 16,384 tensors' worth.
constexpr int64_t kPaddingBytes = int64_t{1} << 20;
// The queue never refuses (PushUnbounded): it holds what was planned, which was submitted before.
constexpr size_t kInboxCapacity = 4096;

}  // namespace

Executor::Executor(ExecutorOptions options, std::unique_ptr<CollectiveBackend> backend,
                   Clock& clock, Finished finished)
    : options_(options),
      backend_name_(backend->name().data(), backend->name().size()),
      finished_(std::move(finished)),
      clock_(clock),
      backend_(std::move(backend)),
      inbox_(kInboxCapacity, clock) {}

Executor::~Executor() { Stop(); }

absl::Status Executor::Start(GroupLayout layout, Store& store, absl::Time deadline) {
  thread_ = StartThread("executor", [this, layout = std::move(layout), &store, deadline] {
    Run(layout, store, deadline);
  });
  MutexLock lock(&mu_);
  while (!connect_ended_) connected_changed_.Wait(&mu_);  // Connect has the deadline
  return connect_status_;
}

void Executor::Launch(std::unique_ptr<BatchJob> batch) {
  batches_.fetch_add(1, std::memory_order_relaxed);
  Input input = std::move(batch);
  if (inbox_.PushUnbounded(std::move(input))) return;
  Finish(std::move(std::get<std::unique_ptr<BatchJob>>(input)),
         absl::AbortedError("the data plane has stopped"));
}

void Executor::ReturnFusionBuffer(int index) { inbox_.PushUnbounded(BufferReturned{index}); }

void Executor::Abort() {
  aborted_.store(true, std::memory_order_release);
  backend_->Abort();
}

void Executor::Stop() {
  if (!thread_.joinable()) return;
  Abort();
  inbox_.Close();
  thread_.join();
}

void Executor::Run(const GroupLayout& layout, Store& store, absl::Time deadline) {
  const absl::Status connected = backend_->Connect(layout, store, deadline);
  {
    MutexLock lock(&mu_);
    connect_status_ = connected;
    connect_ended_ = true;
    connected_changed_.NotifyAll();
  }
  if (!connected.ok()) Abort();
  IdleWait idle(options_.polling_threads, options_.cores);
  bool moved = true;
  while (true) {
    // Nothing in flight and nothing to launch (or no fusion buffer to pack into, whose return comes
    // through the queue): wait there.
    const bool blocked = in_flight_.empty() && !moved;
    TakeInputs(blocked ? absl::InfiniteFuture() : absl::InfinitePast());
    moved = LaunchNext();
    if (!in_flight_.empty()) {
      moved = backend_->Progress() || moved;
      moved = CollectFinished() || moved;
    }
    if (in_flight_.empty() && sized_ == nullptr && waiting_.empty() && inbox_.Finished()) break;
    if (moved) {
      idle.Reset();
    } else if (!in_flight_.empty()) {
      idle.Wait();
    }
  }
  // Where it lived. Stop, which waits for this thread, was the last to call Abort.
  backend_.reset();
}

void Executor::TakeInputs(absl::Time deadline) {
  for (Input& input : inbox_.TakeAll(deadline)) {
    if (auto* batch = std::get_if<std::unique_ptr<BatchJob>>(&input)) {
      waiting_.push_back(std::move(*batch));
    } else {
      free_buffers_.push_back(std::get<BufferReturned>(input).index);
    }
  }
}

bool Executor::LaunchNext() {
  bool moved = false;
  while (sized_ != nullptr || !waiting_.empty()) {
    // What waits for its sizes is launched in full before anything behind it.
    const bool sizing = !in_flight_.empty() && in_flight_.back()->stage == Stage::kSizes;
    if (sizing || in_flight_.size() >= kMaxBatchesInFlight) break;
    std::unique_ptr<BatchJob>& next = sized_ != nullptr ? sized_ : waiting_.front();
    if (aborted_.load(std::memory_order_acquire)) {
      Finish(std::move(next), absl::AbortedError("the data plane was stopped"));
    } else if (sized_ == nullptr && next->NeedsSizes()) {
      CollectiveArgs args = next->SizeExchange();
      next->launched_at = clock_.Now();
      LaunchArgs(std::move(next), Stage::kSizes, std::move(args));
    } else if (!LaunchPayload(next)) {
      break;
    }
    if (&next == &sized_) {
      sized_ = nullptr;
    } else {
      waiting_.pop_front();
    }
    moved = true;
  }
  return moved;
}

bool Executor::LaunchPayload(std::unique_ptr<BatchJob>& batch) {
  const absl::Status prepared = batch->Prepare();
  if (!prepared.ok()) {
    Finish(std::move(batch), prepared);
    return true;
  }
  absl::StatusOr<std::optional<absl::Span<std::byte>>> scratch = ScratchFor(*batch);
  if (!scratch.ok()) {
    Finish(std::move(batch), scratch.status());
    return true;
  }
  if (!scratch->has_value()) return false;
  CollectiveArgs args = batch->Payload(**scratch);
  if (!batch->NeedsSizes()) batch->launched_at = clock_.Now();
  LaunchArgs(std::move(batch), Stage::kPayload, std::move(args));
  return true;
}

void Executor::LaunchArgs(std::unique_ptr<BatchJob> batch, Stage stage, CollectiveArgs args) {
  auto entry = std::make_unique<InFlight>();
  entry->batch = std::move(batch);
  entry->stage = stage;
  InFlight* raw = entry.get();
  const absl::Status launched = backend_->Launch(std::move(args), [raw](absl::Status status) {
    raw->done = true;
    raw->status = std::move(status);
  });
  if (!launched.ok()) {
    Finish(std::move(entry->batch), launched);
    return;
  }
  in_flight_.push_back(std::move(entry));
}

bool Executor::CollectFinished() {
  bool moved = false;
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    InFlight& entry = **it;
    if (!entry.done) {
      ++it;
      continue;
    }
    moved = true;
    if (entry.stage == Stage::kSizes && entry.status.ok()) {
      COORDD_CHECK(sized_ == nullptr);
      sized_ = std::move(entry.batch);
    } else {
      Finish(std::move(entry.batch), std::move(entry.status));
    }
    it = in_flight_.erase(it);
  }
  return moved;
}

absl::StatusOr<std::optional<absl::Span<std::byte>>> Executor::ScratchFor(BatchJob& batch) {
  const int64_t bytes = batch.ScratchBytes();
  if (bytes == 0) return absl::Span<std::byte>();
  const int64_t buffer_bytes = options_.fusion_buffer_bytes + kPaddingBytes;
  if (bytes > buffer_bytes) {
    // What an allgather collects can be larger than what each rank gives.
    batch.own_scratch = AlignedBuffer(bytes);
    if (batch.own_scratch.data() == nullptr)
      return absl::ResourceExhaustedError(absl::StrCat("no memory for ", bytes, " bytes to fuse ",
                                                       batch.tensors().size(), " tensors in"));
    return batch.own_scratch.span();
  }
  // Buffers come into being when they are first needed: a program that fuses nothing has none.
  if (free_buffers_.empty() && fusion_buffers_.size() < kFusionBuffers) {
    COORDD_ASSIGN_OR_RETURN(absl::Span<std::byte> memory,
                            backend_->AllocateFusionBuffer(buffer_bytes));
    free_buffers_.push_back(static_cast<int>(fusion_buffers_.size()));
    fusion_buffers_.push_back(memory);
    fusion_bytes_.fetch_add(buffer_bytes, std::memory_order_relaxed);
  }
  if (free_buffers_.empty()) return std::optional<absl::Span<std::byte>>();
  batch.fusion_buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return fusion_buffers_[static_cast<size_t>(*batch.fusion_buffer)];
}

void Executor::Finish(std::unique_ptr<BatchJob> batch, absl::Status status) {
  batches_.fetch_sub(1, std::memory_order_relaxed);
  batch->status = std::move(status);
  finished_(std::move(batch));
}

}  // namespace coordd
