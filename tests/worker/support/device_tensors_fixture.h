// A whole worker of a job of one, with a driver that is a stand-in, and NCCL's if a test wants it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/protocol/store_memory.h"
#include "tests/support/gpu/fake_gpu.h"
#include "tests/support/hang_limit.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/support/fake_coordinator_link.h"
#include "worker/gpu/cuda/device_handles.h"
#include "worker/host/loopback_backend.h"
#include "worker/runtime/worker_impl.h"

namespace coordd {

inline constexpr int32_t kDevice = 2;

class DeviceTensorsTest : public ::testing::Test {
 protected:
  DeviceTensorsTest() {
    options_.coordinator = {"127.0.0.1", 29650};
    options_.worker_id = "worker-0";
    options_.join_timeout = kHangLimit;
    coordinator_.on_start = [this] { SayMembership(); };
  }
  ~DeviceTensorsTest() override {
    SetFakeCuda("memory_limit", 0);
    SetFakeCuda("capturing", 0);
  }

  v1::CoordinatorMessage Message() const {
    v1::CoordinatorMessage message;
    message.set_epoch(1);
    message.set_generation(generation_);
    return message;
  }
  void SayMembership() {
    v1::CoordinatorMessage message = Message();
    v1::Membership& membership = *message.mutable_membership();
    membership.set_size(1);
    membership.set_local_size(1);
    membership.set_cross_size(1);
    membership.add_nodes()->set_nodes(1);
    membership.mutable_nodes(0)->set_ranks_per_node(1);
    // Thus a worker says that it has entered a next generation.
    const bool often = beats_often_ || generation_ > 1;
    membership.mutable_heartbeat_interval()->set_seconds(often ? 0 : 3600);
    if (often) membership.mutable_heartbeat_interval()->set_nanos(1'000'000);
    membership.mutable_lease()->set_seconds(36000);
    membership.set_store_prefix(absl::StrCat("g", generation_, "/"));
    coordinator_.Say(message);
  }
  // A loss; returns when the worker is in the next generation, of which its program need not know.
  void ChangeGeneration() {
    v1::CoordinatorMessage abort = Message();
    abort.mutable_abort()->set_in_flight(true);
    abort.mutable_abort()->set_reforms(true);
    abort.mutable_abort()->set_reason("rank 1 (host node3, pid 4711) was lost");
    coordinator_.Say(abort);
    while (!coordinator_.ReceiveNext().has_recovery_report()) {
    }
    ++generation_;
    SayMembership();
    while (coordinator_.Receive().generation() != generation_) {
    }
  }
  // Plans the tensors that the worker reports next, so many at a time.
  void PlanWhatIsReady(int count = 1, v1::MemoryKind memory = v1::MEMORY_KIND_CUDA) {
    v1::CoordinatorMessage message = Message();
    while (message.plan().batches_size() < count) {
      const v1::WorkerMessage ready = coordinator_.ReceiveNext();
      for (const v1::TensorSpec& tensor : ready.tensors_ready().tensors()) {
        EXPECT_EQ(tensor.memory(), memory);
        v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
        batch.set_sequence(++planned_);
        batch.add_tensors(tensor.name());
      }
    }
    coordinator_.Say(message);
  }

  std::unique_ptr<Worker> Start(bool with_devices = true, bool with_nccl = false) {
    WorkerSeams seams;
    seams.make_link = [this] { return std::make_unique<FakeCoordinatorLink>(coordinator_); };
    seams.store = std::make_unique<InMemoryStore>();
    seams.make_backend = [](const GroupLayout&) { return std::make_unique<LoopbackBackend>(); };
    seams.gpus.open_devices = [this,
                               with_devices]() -> absl::StatusOr<std::shared_ptr<DeviceRuntime>> {
      ++opened_;
      return DeviceRuntime::Open(with_devices ? FakeCudaPath() : "libno-such-driver.so.1");
    };
    if (with_nccl) {
      seams.gpus.open_nccl = [](std::shared_ptr<DeviceRuntime> devices) {
        return NcclRuntime::Open(FakeNcclEnvironment(), std::move(devices));
      };
    }
    auto worker = StartWorker(options_, std::move(seams), Clock::Real());
    EXPECT_THAT(worker, IsOk());
    coordinator_.Receive();  // the Join
    return *std::move(worker);
  }
  // The coordinator does not answer the goodbye: a destructor would wait for that.
  static void Stop(Worker& worker) { worker.Shutdown(absl::Milliseconds(1)).IgnoreError(); }

  // Four float32, which the fake lets a test read and write.
  float* NewTensor(float value) {
    memory_.push_back(DeviceMemory::Allocate(*device_, kDevice, 16).value());
    float* const values = reinterpret_cast<float*>(memory_.back().data());
    std::fill_n(values, 4, value);
    return values;
  }
  static Submission Of(CollectiveKind kind, const std::string& name, float* input, float* output) {
    Submission submission;
    submission.spec.name = name;
    submission.spec.kind = kind;
    if (Reduces(kind)) submission.spec.op = ReduceOp::kSum;
    submission.spec.shape = {4};
    submission.spec.memory = MemoryKind::kCuda;
    submission.device = kDevice;
    submission.input = input;
    submission.output = output;
    return submission;
  }
  static absl::Status Await(const std::shared_ptr<Work>& work) {
    return work->Wait(Clock::Real().Now() + kHangLimit);
  }

  WorkerOptions options_;
  FakeCoordinator coordinator_;
  int64_t generation_ = 1;
  bool beats_often_ = false;
  int64_t planned_ = 0;  // in the generation
  int opened_ = 0;
  std::shared_ptr<DeviceRuntime> device_ = DeviceRuntime::Open(FakeCudaPath()).value();
  std::vector<DeviceMemory> memory_;
};

}  // namespace coordd
