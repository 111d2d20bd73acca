// Tensors on a GPU, through a whole worker of a job of one, with a driver that is a stand-in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/store_memory.h"
#include "tests/support/gpu/fake_gpu.h"
#include "tests/support/hang_limit.h"
#include "tests/support/status_matchers.h"
#include "tests/worker/fake_coordinator_link.h"
#include "worker/device/device_handles.h"
#include "worker/device/device_kernels.h"
#include "worker/idle_wait.h"
#include "worker/loopback_backend.h"
#include "worker/worker_impl.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int32_t kDevice = 2;

class DeviceTensorsTest : public ::testing::Test {
 protected:
  DeviceTensorsTest() {
    options_.coordinator = {"127.0.0.1", 29650};
    options_.worker_id = "worker-0";
    options_.join_timeout = kHangLimit;
    coordinator_.on_start = [this] { SayMembership(); };
  }
  ~DeviceTensorsTest() override { SetFakeCuda("memory_limit", 0); }

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
    membership.mutable_heartbeat_interval()->set_seconds(generation_ == 1 ? 3600 : 0);
    // Thus a worker says that it has entered a next generation.
    if (generation_ > 1) membership.mutable_heartbeat_interval()->set_nanos(1'000'000);
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
  // Plans the tensors that the worker reports next.
  void PlanWhatIsReady() {
    const v1::WorkerMessage ready = coordinator_.ReceiveNext();
    v1::CoordinatorMessage message = Message();
    for (const v1::TensorSpec& tensor : ready.tensors_ready().tensors()) {
      EXPECT_EQ(tensor.memory(), v1::MEMORY_KIND_CUDA);
      v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
      batch.set_sequence(++planned_);
      batch.add_tensors(tensor.name());
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
  int64_t planned_ = 0;  // in the generation
  int opened_ = 0;
  std::shared_ptr<DeviceRuntime> device_ = DeviceRuntime::Open(FakeCudaPath()).value();
  std::vector<DeviceMemory> memory_;
};

TEST_F(DeviceTensorsTest, IsReducedWhereItIs) {
  const auto worker = Start();
  EXPECT_EQ(opened_, 0);  // who has no tensors on a GPU does not initialise the driver
  float* const values = NewTensor(3.0f);
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, values);
  submission.spec.postscale_factor = 2.0;
  const auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  ASSERT_THAT(Await(*work), IsOk());
  EXPECT_EQ(values[0], 6.0f);
  EXPECT_EQ(values[3], 6.0f);
  EXPECT_EQ((*work)->result().generation, Generation{1});
  EXPECT_EQ(opened_, 1);
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, IsReadWhenTheCallersStreamHasMadeIt) {
  const auto worker = Start();
  DeviceStream stream = DeviceStream::Create(*device_, kDevice).value();
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory word = DeviceMemory::AllocatePinned(*device_, kDevice, 4).value();
  auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
  float* const values = NewTensor(1.0f);
  float* const made = NewTensor(5.0f);
  float* const sum = NewTensor(0.0f);
  ASSERT_TRUE(kernels.Gate(closed, stream.get()).ok());
  ASSERT_TRUE(CopyAsync(*device_, kDevice, values, made, 16, stream.get()).ok());
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, sum);
  submission.stream = reinterpret_cast<uintptr_t>(stream.get());
  const auto work = worker->Submit(submission);  // does not wait for the stream
  ASSERT_THAT(work, IsOk());
  EXPECT_FALSE((*work)->done());
  *closed = 0;
  PlanWhatIsReady();
  ASSERT_THAT(Await(*work), IsOk());
  EXPECT_EQ(sum[2], 5.0f);
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, AResultThatTheLibraryMakesIsOnTheDeviceAndOutlivesTheWorker) {
  auto worker = Start();
  float* const values = NewTensor(7.0f);
  auto work = worker->Submit(Of(CollectiveKind::kAllgather, "rows", values, nullptr));
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  ASSERT_THAT(Await(*work), IsOk());
  const std::shared_ptr<std::byte[]> result = (*work)->result().owned_output;
  EXPECT_EQ((*work)->result().output_bytes, 16);
  Stop(*worker);
  worker.reset();
  work = absl::CancelledError("released");
  EXPECT_EQ(FakeCudaDeviceOf(result.get()), kDevice);
  EXPECT_EQ(reinterpret_cast<const float*>(result.get())[3], 7.0f);
}

TEST_F(DeviceTensorsTest, AnOutputThatIsTooSmallIsNotWrittenTo) {
  const auto worker = Start();
  float* const values = NewTensor(7.0f);
  float* const output = NewTensor(1.0f);
  Submission submission = Of(CollectiveKind::kAllgather, "rows", values, output);
  submission.output_capacity_bytes = 12;
  const auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  EXPECT_THAT(Await(*work), StatusIs(absl::StatusCode::kInvalidArgument,
                                     AllOf(HasSubstr("16 bytes"), HasSubstr("at most the 12"))));
  EXPECT_EQ(output[0], 1.0f);
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, AnAddressOfTheHostIsRefusedAndTheNameIsFreeAgain) {
  const auto worker = Start();
  float own[4] = {1, 1, 1, 1};
  const Submission wrong = Of(CollectiveKind::kAllreduce, "grad", own, own);
  EXPECT_THAT(worker->Submit(wrong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tensor grad"), HasSubstr("no device knows"),
                             HasSubstr("expected memory of device 2"))));
  float* const values = NewTensor(1.0f);
  const auto work = worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values));
  ASSERT_THAT(work, IsOk());
  EXPECT_THAT(worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values)),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("grad")));
  PlanWhatIsReady();
  EXPECT_THAT(Await(*work), IsOk());
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, MemoryOfAnotherDeviceIsNamed) {
  const auto worker = Start();
  float* const values = NewTensor(1.0f);
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, values);
  submission.device = 0;
  EXPECT_THAT(worker->Submit(submission),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("on device 2"), HasSubstr("expected memory of device 0"))));
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, AStreamThatNeverComesSoFarIsTheTensorsError) {
  const auto worker = Start();
  DeviceStream stream = DeviceStream::Create(*device_, kDevice).value();
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory word = DeviceMemory::AllocatePinned(*device_, kDevice, 4).value();
  auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
  ASSERT_TRUE(kernels.Gate(closed, stream.get()).ok());
  float* const values = NewTensor(1.0f);
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, values);
  submission.stream = reinterpret_cast<uintptr_t>(stream.get());
  submission.timeout = absl::Milliseconds(50);
  const auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  EXPECT_THAT(Await(*work), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                     AllOf(HasSubstr("tensor grad"), HasSubstr("not ready"))));
  *closed = 0;
  // Its name is free, and what it held is used again.
  submission.timeout = kHangLimit;
  const auto again = worker->Submit(submission);
  ASSERT_THAT(again, IsOk());
  PlanWhatIsReady();
  EXPECT_THAT(Await(*again), IsOk());
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, WhatIsPendingWhenTheWorkerEndsIsCancelled) {
  const auto worker = Start();
  float* const values = NewTensor(1.0f);
  const auto work = worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values));
  ASSERT_THAT(work, IsOk());
  Stop(*worker);
  EXPECT_THAT(Await(*work), StatusIs(absl::StatusCode::kCancelled, HasSubstr("tensor grad")));
  EXPECT_FALSE(worker->Submit(Of(CollectiveKind::kAllreduce, "more", values, values)).ok());
}

TEST_F(DeviceTensorsTest, AGroupIsForwardedWhole) {
  const auto worker = Start();
  float* const first = NewTensor(1.0f);
  float* const second = NewTensor(2.0f);
  const auto works =
      worker->SubmitGroup("layer", {Of(CollectiveKind::kAllreduce, "weight", first, first),
                                    Of(CollectiveKind::kAllreduce, "bias", second, second)});
  ASSERT_THAT(works, IsOk());
  PlanWhatIsReady();
  for (const auto& work : *works) EXPECT_THAT(Await(work), IsOk());
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, PinnedMemoryThatCannotBeHadIsTheTensorsError) {
  const auto worker = Start();
  float* const values = NewTensor(1.0f);
  auto work = worker->Submit(Of(CollectiveKind::kAllgather, "rows", values, nullptr));
  ASSERT_THAT(work, IsOk());
  SetFakeCuda("memory_limit", 20);  // nothing is left for the result
  PlanWhatIsReady();
  EXPECT_THAT(Await(*work), StatusIs(absl::StatusCode::kResourceExhausted,
                                     AllOf(HasSubstr("device 2"), HasSubstr("out of memory"))));
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, NcclGetsItBehindTheCallersStreamAndNobodyWaitsForTheDevice) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  DeviceStream stream = DeviceStream::Create(*device_, kDevice).value();
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory word = DeviceMemory::AllocatePinned(*device_, kDevice, 4).value();
  auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
  float* const values = NewTensor(1.0f);
  float* const made = NewTensor(5.0f);
  ASSERT_TRUE(kernels.Gate(closed, stream.get()).ok());
  ASSERT_TRUE(CopyAsync(*device_, kDevice, values, made, 16, stream.get()).ok());
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, values);
  submission.stream = reinterpret_cast<uintptr_t>(stream.get());
  submission.spec.postscale_factor = 2.0;
  // Two steps, one behind the other, while the device has not even begun.
  for (int step = 0; step < 2; ++step) {
    const auto work = worker->Submit(submission);
    ASSERT_THAT(work, IsOk());
    PlanWhatIsReady();
    const auto event = (*work)->AwaitEnqueued(Clock::Real().Now() + kHangLimit);
    ASSERT_THAT(event, IsOk());
    ASSERT_NE(*event, nullptr);
    EXPECT_FALSE((*work)->done());
    EXPECT_EQ((*work)->result().output_bytes, 16);
    ASSERT_THAT((*event)->LetWait(stream.get()), IsOk());
  }
  DeviceEvent end = DeviceEvent::Create(*device_, kDevice).value();
  ASSERT_THAT(end.Record(stream.get()), IsOk());
  EXPECT_FALSE(end.Happened().value());
  *closed = 0;
  IdleWait idle(1, 1);
  while (!end.Happened().value()) idle.Wait();
  EXPECT_EQ(values[0], 20.0f);
  EXPECT_EQ(values[3], 20.0f);
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, WhatALostGenerationLeavesIsHeldUntilTheProgramKnowsOfTheNext) {
  options_.on_failure = OnFailure::kRaise;
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  DeviceStream stream = DeviceStream::Create(*device_, kDevice).value();
  DeviceStream reader = DeviceStream::Create(*device_, kDevice).value();
  DeviceEvent read = DeviceEvent::Create(*device_, kDevice).value();
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory word = DeviceMemory::AllocatePinned(*device_, kDevice, 4).value();
  auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
  // It waits for its input as long as the generation lasts, and its result is read by a stream.
  ASSERT_TRUE(kernels.Gate(closed, stream.get()).ok());
  Submission submission = Of(CollectiveKind::kAllgather, "rows", NewTensor(1.0f), nullptr);
  submission.stream = reinterpret_cast<uintptr_t>(stream.get());
  auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  const auto event = (*work)->AwaitEnqueued(Clock::Real().Now() + kHangLimit);
  ASSERT_THAT(event, IsOk());
  ASSERT_THAT((*event)->LetWait(reader.get()), IsOk());
  ASSERT_THAT(read.Record(reader.get()), IsOk());
  ChangeGeneration();
  const long aborted = FakeNcclAbortedCommunicators();
  *closed = 0;
  while (FakeNcclAbortedCommunicators() == aborted) std::this_thread::yield();
  EXPECT_FALSE(read.Happened().value());
  ASSERT_THAT(worker->AwaitGeneration(Clock::Real().Now() + kHangLimit), IsOk());
  IdleWait idle(1, 1);
  while (!read.Happened().value()) idle.Wait();
  // The next one is on the device beside it.
  float* const values = NewTensor(3.0f);
  planned_ = 0;
  work = worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values));
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  ASSERT_THAT(Await(*work), IsOk());
  EXPECT_EQ(values[0], 3.0f);
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, CollectivesOfARankAreOnOneDevice) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  const auto work = worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values));
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  EXPECT_THAT(Await(*work), IsOk());
  DeviceMemory elsewhere = DeviceMemory::Allocate(*device_, 0, 16).value();
  auto* const other = reinterpret_cast<float*>(elsewhere.data());
  Submission submission = Of(CollectiveKind::kAllreduce, "other", other, other);
  submission.device = 0;
  EXPECT_THAT(worker->Submit(submission),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("tensor other: device 0"), HasSubstr("expected 2"))));
  Stop(*worker);
}

TEST_F(DeviceTensorsTest, WhatNcclCannotReduceIsStaged) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  Submission submission = Of(CollectiveKind::kAllreduce, "shorts", values, values);
  submission.spec.dtype = DataType::kInt16;
  const auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  PlanWhatIsReady();
  // The host carries it: there is nothing to wait for on the device.
  const auto event = (*work)->AwaitEnqueued(Clock::Real().Now() + kHangLimit);
  ASSERT_THAT(event, IsOk());
  EXPECT_EQ(*event, nullptr);
  EXPECT_TRUE((*work)->done());
  Stop(*worker);
}

class Float8OnDevicesTest : public DeviceTensorsTest, public ::testing::WithParamInterface<long> {
 protected:
  Float8OnDevicesTest() { SetFakeCuda("capability", GetParam()); }
  ~Float8OnDevicesTest() override { SetFakeCuda("capability", 9); }
};

// A job of one agrees with itself at once, but not before its first tensor is there.
TEST_P(Float8OnDevicesTest, AreStagedWhereNcclDoesNotReduceIt) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  for (const char* name : {"first", "second"}) {
    Submission submission = Of(CollectiveKind::kAllreduce, name, values, values);
    submission.spec.dtype = DataType::kFloat8E5m2;
    submission.spec.postscale_factor = 0.5;  // of 1.0f, the bytes 00 00 80 3f
    const auto work = worker->Submit(submission);
    ASSERT_THAT(work, IsOk());
    PlanWhatIsReady();
    const auto event = (*work)->AwaitEnqueued(Clock::Real().Now() + kHangLimit);
    ASSERT_THAT(event, IsOk());
    EXPECT_EQ(*event == nullptr, GetParam() < 9);
    EXPECT_THAT(Await(*work), IsOk());
  }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(values);
  // The first four bytes are the tensor; halved twice, an exponent of e5m2 each.
  EXPECT_EQ(bytes[3], 0x3f - 8);
  EXPECT_EQ(TakeBrokenNcclRule(), "");
  Stop(*worker);
}

INSTANTIATE_TEST_SUITE_P(Capabilities, Float8OnDevicesTest, ::testing::Values(8L, 9L));

TEST_F(DeviceTensorsTest, WithoutADriverTheCallerIsToldWhy) {
  const auto worker = Start(/*with_devices=*/false);
  float* const values = NewTensor(1.0f);
  EXPECT_THAT(worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values)),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("tensor grad: device memory, but this process has no CUDA"),
                             HasSubstr("libno-such-driver.so.1"))));
  Stop(*worker);
}

}  // namespace
}  // namespace coordd
