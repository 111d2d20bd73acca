// A backend whose batches end when the test says so, and which knows who drives it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "worker/base/aligned_buffer.h"
#include "worker/interfaces/collective_backend.h"

namespace coordd {

// What the test keeps of it. Thread-safe; outlives the backend.
class HeldBatches {
 public:
  // Lets the first batch of the lane that has not been released end well. It need not be launched
  // yet.
  void Release(LaneId lane) {
    MutexLock lock(&mu_);
    ++released_[lane];
  }
  // Waits until a batch is launched on the lane; returns by which thread the last one was.
  std::thread::id AwaitLaunch(LaneId lane) {
    MutexLock lock(&mu_);
    while (launched_by_.find(lane) == launched_by_.end()) changed_.Wait(&mu_);
    return launched_by_[lane];
  }
  // Waits until the backend is driven by that thread, or by any other.
  void AwaitDriver(std::thread::id thread) {
    MutexLock lock(&mu_);
    while (driver_ != thread) changed_.Wait(&mu_);
  }
  void AwaitDriverOtherThan(std::thread::id thread) {
    MutexLock lock(&mu_);
    while (driver_ == thread || driver_ == std::thread::id()) changed_.Wait(&mu_);
  }

 private:
  friend class HeldBackend;

  Mutex mu_;
  CondVar changed_;
  std::map<LaneId, int> released_ ABSL_GUARDED_BY(mu_);
  std::map<LaneId, std::thread::id> launched_by_ ABSL_GUARDED_BY(mu_);
  std::thread::id driver_ ABSL_GUARDED_BY(mu_);
};

class HeldBackend final : public CollectiveBackend {
 public:
  // `connected`: what Connect returns.
  explicit HeldBackend(HeldBatches& held, absl::Status connected = {})
      : held_(held), connected_(std::move(connected)) {}
  ~HeldBackend() override {
    for (auto& [lane, done] : running_) std::move(done)(absl::AbortedError("the backend ended"));
  }

  absl::string_view name() const override { return "held"; }
  bool Supports(MemoryKind, DataType, CollectiveKind) const override { return true; }
  absl::Status Connect(const GroupLayout&, Store&, absl::Time) override { return connected_; }
  absl::Status DefineGroup(ProcessSetId, absl::Span<const Rank>) override { return {}; }
  void EndGroup(ProcessSetId) override {}
  void EndLane(LaneId) override {}

  absl::Status Launch(CollectiveArgs args, Done done) override {
    running_.emplace_back(args.lane, std::move(done));
    MutexLock lock(&held_.mu_);
    held_.launched_by_[args.lane] = std::this_thread::get_id();
    held_.changed_.NotifyAll();
    return absl::OkStatus();
  }
  bool Progress() override {
    std::vector<Done> ended;
    const absl::Status status =
        aborted_ ? absl::AbortedError("the held batches were aborted") : absl::OkStatus();
    {
      MutexLock lock(&held_.mu_);
      held_.driver_ = std::this_thread::get_id();
      held_.changed_.NotifyAll();
      for (auto at = running_.begin(); at != running_.end();) {
        int& released = held_.released_[at->first];
        if (status.ok() && released == 0) {
          ++at;
          continue;
        }
        if (status.ok()) --released;
        ended.push_back(std::move(at->second));
        at = running_.erase(at);
      }
    }
    for (Done& done : ended) std::move(done)(status);
    return !ended.empty();
  }
  absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t size_bytes) override {
    buffers_.emplace_back(size_bytes);
    return buffers_.back().span();
  }
  void Abort() override { aborted_ = true; }

 private:
  HeldBatches& held_;
  const absl::Status connected_;
  std::atomic<bool> aborted_ = false;
  std::vector<std::pair<LaneId, Done>> running_;
  std::vector<AlignedBuffer> buffers_;
};

}  // namespace coordd
