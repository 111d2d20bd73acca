// Two ranks of NcclBackend over the fake libraries, which look after NCCL's rules.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "tests/support/gpu/fake_gpu.h"
#include "tests/worker/support/rank_group.h"
#include "worker/gpu/nccl/nccl_backend.h"

namespace coordd {

class NcclBackendTest : public testing::Test {
 protected:
  using Context = RankContext<NcclBackend>;

  NcclBackendTest() { options_.init_limit = absl::Minutes(2); }
  ~NcclBackendTest() override {
    for (const char* name :
         {"init_never", "init_error", "id_error", "register_error", "memory_error", "no_windows",
          "async_error", "abort_hangs", "id_repeats", "shrink_error", "shrink_never",
          "shrink_fails", "split_error", "split_fails"}) {
      SetFakeNccl(name, 0);
    }
    SetFakeNccl("init_polls", 1);
    SetFakeNccl("call_polls", 1);
    SetFakeNccl("shrink_polls", 1);
    EXPECT_EQ(TakeBrokenNcclRule(), "");
  }

  // Runs `body` as two ranks, on devices 0 and 1, or both on `same_device`.
  void RunTwo(const std::function<void(Context&)>& body, bool same_device = false) {
    GroupCase<NcclBackend> two;
    two.new_group = [&](int32_t) {
      auto next_device = std::make_shared<std::atomic<int32_t>>(0);
      return [this, next_device, same_device] {
        NcclBackendOptions options = options_;
        const int32_t own = (*next_device)++;
        options.device = same_device ? 0 : own;
        if (window_bytes_ > 0)
          options.window = NcclMemory::Allocate(runtime_, options.device, window_bytes_).value();
        return std::make_unique<NcclBackend>(runtime_, Clock::Real(), options);
      };
    };
    RunRanks<NcclBackend>(two, 2, body);
  }

  // Device memory whose contents a test reads and writes, as the fake's lets it.
  struct Tensor {
    DeviceMemory memory;
    int32_t device;
    float* values() { return reinterpret_cast<float*>(memory.data()); }
  };
  Tensor NewTensor(const Context& context, size_t count, float value) {
    const int32_t device = context.object.device();
    Tensor tensor{DeviceMemory::Allocate(*runtime_->device, device,
                                         static_cast<int64_t>(count * sizeof(float)))
                      .value(),
                  device};
    std::fill_n(tensor.values(), count, value);
    return tensor;
  }
  static CollectiveArgs Sum(Tensor& tensor) {
    CollectiveArgs args;
    args.kind = CollectiveKind::kAllreduce;
    args.dtype = DataType::kFloat32;
    args.op = ReduceOp::kSum;
    args.memory = MemoryKind::kCuda;
    args.device = tensor.device;
    args.input = tensor.memory.span();
    args.output = tensor.memory.span();
    return args;
  }
  // Batches on the device at a time, over the stand-in.
  static size_t MostEnqueued() {
    return FakeNcclVersion() < NcclBackend::kVersionLooksOften ? NcclBackend::kMaxEnqueuedOfOld
                                                               : NcclBackend::kMaxEnqueued;
  }
  static absl::Status RunOne(Context& context, CollectiveArgs args) {
    std::optional<absl::Status> ended;
    const absl::Status launched = context.object.Launch(
        std::move(args), [&](absl::Status status) { ended = std::move(status); });
    if (!launched.ok()) return launched;
    context.DriveUntil([&] { return ended.has_value(); });
    return *ended;
  }

  std::shared_ptr<NcclRuntime> runtime_ = OpenFakeGpus();
  NcclBackendOptions options_;
  int64_t window_bytes_ = 0;        // of options.window, which each rank gets then
  std::atomic<bool> over_ = false;  // what a rank tells the other
};

}  // namespace coordd
