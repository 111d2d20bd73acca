// A backend for host memory out of one for device memory, so that the conformance suite runs on it.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {

// Each batch gets device memory of its own. Where input and output overlap, they do there.
class DeviceCopies final : public CollectiveBackend {
 public:
  DeviceCopies(std::unique_ptr<CollectiveBackend> backend, DeviceRuntime& device, int32_t index)
      : device_(device), index_(index), backend_(std::move(backend)) {}
  // The backend ends first: it hands back what is pending, and opens its gate.
  ~DeviceCopies() override {
    backend_.reset();
    if (stream_.has_value()) Drain();
  }

  absl::string_view name() const override { return backend_->name(); }
  bool Supports(MemoryKind, DataType dtype, CollectiveKind kind) const override {
    return backend_->Supports(MemoryKind::kCuda, dtype, kind);
  }
  absl::Status Connect(const GroupLayout& layout, Store& store, absl::Time deadline) override {
    stream_.emplace(DeviceStream::Create(device_, index_).value());
    return backend_->Connect(layout, store, deadline);
  }
  absl::Status DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) override {
    return backend_->DefineGroup(group, ranks);
  }
  void EndGroup(ProcessSetId group) override { backend_->EndGroup(group); }
  void EndLane(LaneId lane) override { backend_->EndLane(lane); }
  bool Progress() override { return backend_->Progress(); }
  absl::StatusOr<absl::Span<std::byte>> AllocateFusionBuffer(int64_t size_bytes) override {
    return backend_->AllocateFusionBuffer(size_bytes);
  }
  void Abort() override { backend_->Abort(); }

  absl::Status Launch(CollectiveArgs args, Done done) override {
    auto buffers = std::make_shared<Buffers>();
    Place(*buffers, args);
    const absl::Span<std::byte> host_output = args.output;
    if (!args.input.empty()) Copy(buffers->input, args.input.data(), args.input.size());
    // What a broadcast sends, and what stays as it was.
    if (!args.output.empty()) Copy(buffers->output, args.output.data(), args.output.size());
    args.input = {buffers->input, args.input.size()};
    args.output = {buffers->output, args.output.size()};
    args.memory = MemoryKind::kCuda;
    args.device = index_;
    args.ready = std::make_shared<DeviceEvent>(DeviceEvent::Create(device_, index_).value());
    COORDD_CHECK(args.ready->Record(stream_->get()).ok());
    // The copy out follows the event that other streams would wait for, not `done`.
    args.enqueued = [this, buffers, host_output](const std::shared_ptr<DeviceEvent>& end) {
      COORDD_CHECK(stream_->Wait(end->get()).ok());
      buffers->staging.emplace(
          DeviceMemory::AllocatePinned(device_, index_, static_cast<int64_t>(host_output.size()))
              .value());
      if (!host_output.empty()) Copy(buffers->staging->data(), buffers->output, host_output.size());
    };
    const absl::Status launched = backend_->Launch(
        std::move(args),
        [this, buffers, host_output, done = std::move(done)](absl::Status status) mutable {
          // Its copies may be on their way, and stand behind the gate.
          if (!status.ok()) failed_.push_back(buffers);
          if (status.ok()) {
            Drain();
            if (!host_output.empty())
              std::memcpy(host_output.data(), buffers->staging->data(), host_output.size());
          }
          std::move(done)(std::move(status));
        });
    if (!launched.ok()) Drain();  // the copies are on their way
    return launched;
  }

 private:
  struct Buffers {
    std::vector<DeviceMemory> memory;
    std::byte* input = nullptr;
    std::byte* output = nullptr;
    std::optional<DeviceMemory> staging;
  };

  void Place(Buffers& buffers, const CollectiveArgs& args) {
    const std::byte* in = args.input.data();
    const std::byte* out = args.output.data();
    const std::byte* in_end = in + args.input.size();
    const std::byte* out_end = out + args.output.size();
    if (in < out_end && out < in_end) {
      const std::byte* first = std::min(in, out);
      std::byte* memory = Allocate(buffers, std::max(in_end, out_end) - first);
      buffers.input = memory + (in - first);
      buffers.output = memory + (out - first);
      return;
    }
    if (!args.input.empty()) buffers.input = Allocate(buffers, in_end - in);
    if (!args.output.empty()) buffers.output = Allocate(buffers, out_end - out);
  }
  std::byte* Allocate(Buffers& buffers, int64_t size_bytes) {
    buffers.memory.push_back(DeviceMemory::Allocate(device_, index_, size_bytes).value());
    return buffers.memory.back().data();
  }
  void Copy(void* to, const void* from, size_t size) {
    COORDD_CHECK(
        CopyAsync(device_, index_, to, from, static_cast<int64_t>(size), stream_->get()).ok());
  }
  void Drain() {
    DeviceEvent event = DeviceEvent::Create(device_, index_).value();
    COORDD_CHECK(event.Record(stream_->get()).ok());
    IdleWait idle(1, 1);
    while (!event.Happened().value()) idle.Wait();
  }

  DeviceRuntime& device_;
  const int32_t index_;
  std::vector<std::shared_ptr<Buffers>> failed_;  // what copies may still write to
  std::optional<DeviceStream> stream_;
  std::unique_ptr<CollectiveBackend> backend_;
};

}  // namespace coordd
