// A rank whose allreduces go by NCCL within its node and by the host's backend between nodes, for
// tests of both without a worker.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "worker/gpu/nccl/nccl_backend.h"
#include "worker/host/host_backend.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {

// Of the groups whose size is a multiple of `ranks_per_node`, and larger; the others go flat. The
// host's backend has a thread of its own, as it has in a worker.
class HierarchicalRank final : public CollectiveBackend {
 public:
  struct Options {
    int32_t ranks_per_node = 2;
    int64_t chunk_bytes = HierarchyShape{}.chunk_bytes;
  };
  HierarchicalRank(Options options, std::unique_ptr<NcclBackend> nccl,
                   std::unique_ptr<CollectiveBackend> host)
      : options_(options), host_(std::move(host)), nccl_(std::move(nccl)) {
    thread_ = StartThread("host", [this] { DriveHost(); });
  }
  ~HierarchicalRank() override {
    nccl_.reset();  // nothing is begun any more
    stop_ = true;
    thread_.join();
  }

  absl::string_view name() const override { return "hierarchical"; }
  bool Supports(MemoryKind memory, DataType dtype, CollectiveKind kind) const override {
    return nccl_->Supports(memory, dtype, kind);
  }
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override {
    {
      MutexLock lock(&mu_);
      COORDD_RETURN_IF_ERROR(host_->Connect(layout, store, deadline));
      connected_ = true;
    }
    COORDD_RETURN_IF_ERROR(nccl_->Connect(layout, store, deadline));
    self_ = layout.self();
    std::vector<Rank> all;
    for (int32_t r = 0; r < layout.size(); ++r) all.push_back(Rank{r});
    return UseHierarchy(ProcessSetId{0}, all);
  }
  absl::Status DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) override {
    COORDD_RETURN_IF_ERROR(nccl_->DefineGroup(group, ranks));
    return UseHierarchy(group, ranks);
  }
  void EndGroup(ProcessSetId group) override {
    nccl_->EndGroup(group);
    MutexLock lock(&mu_);
    host_->EndGroup(ProcessSetId{ToInt(LaneOf(group))});
  }
  void EndLane(LaneId lane) override { nccl_->EndLane(lane); }
  absl::Status Launch(CollectiveArgs args, Done done) override {
    return nccl_->Launch(std::move(args), std::move(done));
  }
  bool Progress() override { return nccl_->Progress(); }
  absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t size_bytes) override {
    return nccl_->AllocateFusionBuffer(size_bytes);
  }
  void Abort() override {
    host_->Abort();
    nccl_->Abort();
  }

  NcclBackend& nccl() { return *nccl_; }
  // The host's part stands still, or goes on.
  void StopHost(bool stopped) { host_stopped_ = stopped; }
  int64_t exchanges() const { return exchanges_; }

 private:
  struct Exchange {
    CollectiveArgs args;
    Done done;
  };

  static LaneId LaneOf(ProcessSetId group) { return LaneId{1000 + ToInt(group)}; }

  absl::Status UseHierarchy(ProcessSetId group, absl::Span<const Rank> ranks) {
    const auto per_node = static_cast<size_t>(options_.ranks_per_node);
    if (ranks.size() % per_node != 0 || ranks.size() == per_node) return absl::OkStatus();
    const auto self =
        static_cast<size_t>(std::find(ranks.begin(), ranks.end(), self_) - ranks.begin());
    std::vector<Rank> across;
    for (size_t at = self % per_node; at < ranks.size(); at += per_node)
      across.push_back(ranks[at]);
    {
      MutexLock lock(&mu_);
      COORDD_RETURN_IF_ERROR(host_->DefineGroup(ProcessSetId{ToInt(LaneOf(group))}, across));
    }
    Hierarchy how;
    how.ranks_per_node = options_.ranks_per_node;
    how.lane = LaneOf(group);
    how.chunk_bytes = options_.chunk_bytes;
    how.exchange = [this](CollectiveArgs args, Done done) {
      MutexLock lock(&begun_mu_);
      begun_.push_back({std::move(args), std::move(done)});
    };
    nccl_->UseHierarchy(group, std::move(how));
    return absl::OkStatus();
  }
  void DriveHost() {
    IdleWait idle(1, 1);
    while (!stop_) {
      bool moved = false;
      if (!host_stopped_) {
        MutexLock lock(&mu_);
        LaunchExchanges();
        moved = connected_ && host_->Progress();
      }
      if (moved) {
        idle.Reset();
      } else {
        idle.Wait();
      }
    }
  }
  void LaunchExchanges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::deque<Exchange> begun;
    {
      MutexLock lock(&begun_mu_);
      begun.swap(begun_);
    }
    for (Exchange& exchange : begun) {
      ++exchanges_;
      auto done = std::make_shared<Done>(std::move(exchange.done));
      const absl::Status launched =
          host_->Launch(std::move(exchange.args),
                        [done](absl::Status status) { std::move (*done)(std::move(status)); });
      if (!launched.ok()) std::move (*done)(launched);
    }
  }

  const Options options_;
  Rank self_;
  std::atomic<int64_t> exchanges_ = 0;
  std::atomic<bool> stop_ = false, host_stopped_ = false;
  Mutex begun_mu_;
  std::deque<Exchange> begun_ ABSL_GUARDED_BY(begun_mu_);
  Mutex mu_;  // whoever has it is the owner of host_, but for Abort
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<CollectiveBackend> host_;
  std::unique_ptr<NcclBackend> nccl_;
  std::thread thread_;
};

}  // namespace coordd
