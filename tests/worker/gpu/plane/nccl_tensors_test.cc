// Tensors on a GPU that NCCL carries, through a whole worker: what holds on the way between the
// program's streams, NCCL and the runtime's threads.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/support/device_tensors_fixture.h"
#include "worker/gpu/cuda/device_kernels.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class NcclTensorsTest : public DeviceTensorsTest {};

TEST_F(NcclTensorsTest, NcclGetsItBehindTheCallersStreamAndNobodyWaitsForTheDevice) {
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

TEST_F(NcclTensorsTest, CoordinatorHearsWhatStandsOnTheDeviceAndWhy) {
  beats_often_ = true;
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  DeviceStream stream = DeviceStream::Create(*device_, kDevice).value();
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory word = DeviceMemory::AllocatePinned(*device_, kDevice, 4).value();
  auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
  float* const values = NewTensor(1.0f);
  ASSERT_TRUE(kernels.Gate(closed, stream.get()).ok());
  Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, values);
  submission.stream = reinterpret_cast<uintptr_t>(stream.get());
  const auto held = worker->Submit(submission);
  ASSERT_THAT(held, IsOk());
  PlanWhatIsReady();
  submission.spec.name = "other";
  submission.stream = 0;
  submission.input = submission.output = NewTensor(2.0f);
  const auto behind = worker->Submit(submission);
  ASSERT_THAT(behind, IsOk());
  PlanWhatIsReady();
  v1::Heartbeat told;
  while (told.device_batches_size() < 2 ||
         told.device_batches(0).stage() != v1::DEVICE_STAGE_HELD) {
    told = coordinator_.Receive().heartbeat();
  }
  EXPECT_EQ(told.device_batches(0).tensor(), "grad");
  EXPECT_EQ(told.device_batches(0).sequence(), 1);
  EXPECT_GE(told.device_batches(0).on_device().seconds(), 1);
  EXPECT_EQ(told.device_batches(1).tensor(), "other");
  EXPECT_EQ(told.device_batches(1).stage(), v1::DEVICE_STAGE_ENQUEUED);
  *closed = 0;
  EXPECT_THAT(Await(*held), IsOk());
  EXPECT_THAT(Await(*behind), IsOk());
  while (told.device_batches_size() > 0) told = coordinator_.Receive().heartbeat();
  Stop(*worker);
}

TEST_F(NcclTensorsTest, WhatALostGenerationLeavesIsHeldUntilTheProgramKnowsOfTheNext) {
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
  const long revoked = FakeNcclRevokedCommunicators();
  *closed = 0;
  // What ran has ended; NCCL's abort would free memory, and wait for the gate to do so.
  const bool revokes = FakeNcclHas("ncclCommRevoke");
  while (revokes && FakeNcclRevokedCommunicators() == revoked) std::this_thread::yield();
  EXPECT_EQ(FakeNcclAbortedCommunicators(), aborted);
  EXPECT_FALSE(read.Happened().value());
  ASSERT_THAT(worker->AwaitGeneration(Clock::Real().Now() + kHangLimit), IsOk());
  IdleWait idle(1, 1);
  while (!read.Happened().value()) idle.Wait();
  while (FakeNcclAbortedCommunicators() == aborted) std::this_thread::yield();
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

TEST_F(NcclTensorsTest, AResultThatNobodyWantsIsNotFreedWhileTheDeviceIsBusy) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  DeviceStream first = DeviceStream::Create(*device_, kDevice).value();
  DeviceStream last = DeviceStream::Create(*device_, kDevice).value();
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory words = DeviceMemory::AllocatePinned(*device_, kDevice, 8).value();
  auto* const closed = new (words.data()) std::atomic<uint32_t>(1);
  auto* const closed_last = new (words.data() + 4) std::atomic<uint32_t>(1);
  ASSERT_TRUE(kernels.Gate(closed, first.get()).ok());
  ASSERT_TRUE(kernels.Gate(closed_last, last.get()).ok());
  std::vector<std::shared_ptr<Work>> works;
  for (const char* name : {"rows", "grad", "later"}) {
    const bool rows = works.empty();
    float* const values = NewTensor(1.0f);
    Submission submission = rows ? Of(CollectiveKind::kAllgather, name, values, nullptr)
                                 : Of(CollectiveKind::kAllreduce, name, values, values);
    submission.stream = reinterpret_cast<uintptr_t>((works.size() < 2 ? first : last).get());
    works.push_back(worker->Submit(submission).value());
    PlanWhatIsReady();
    ASSERT_THAT(works.back()->AwaitEnqueued(Clock::Real().Now() + kHangLimit), IsOk());
  }
  works[0].reset();
  *closed = 0;
  // To free it is to wait for what is still on the device, and who waits so completes nothing.
  EXPECT_THAT(Await(works[1]), IsOk());
  EXPECT_FALSE(works[2]->done());
  *closed_last = 0;
  EXPECT_THAT(Await(works[2]), IsOk());
  Stop(*worker);
}

TEST_F(NcclTensorsTest, WhatFailsOnOneRankAloneIsNotFollowedByAnythingOnNccl) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  // So that NCCL is there.
  const auto before = worker->Submit(Of(CollectiveKind::kAllreduce, "before", values, values));
  ASSERT_THAT(before, IsOk());
  PlanWhatIsReady();
  ASSERT_THAT(Await(*before), IsOk());
  SetFakeCuda("memory_limit", 20);  // nothing is left for the result
  const auto rows = worker->Submit(Of(CollectiveKind::kAllgather, "rows", values, nullptr));
  const auto grad = worker->Submit(Of(CollectiveKind::kAllreduce, "grad", values, values));
  ASSERT_THAT(rows, IsOk());
  ASSERT_THAT(grad, IsOk());
  PlanWhatIsReady(2);
  const absl::Status failed = Await(*rows);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("no memory for a result of 16 bytes"));
  // On the others both are launched, and NCCL would take this rank's second call for the first.
  EXPECT_FALSE(Await(*grad).ok());
  Stop(*worker);
}

TEST_F(NcclTensorsTest, AStreamThatIsCapturedIsRefusedAndTheRuntimeEndsNoCapture) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  const Submission submission = Of(CollectiveKind::kAllreduce, "grad", values, values);
  const auto work = worker->Submit(submission);
  ASSERT_THAT(work, IsOk());
  SetFakeCuda("capturing", 1);  // what the program does meanwhile, on other streams
  PlanWhatIsReady();
  EXPECT_THAT(Await(*work), IsOk());
  EXPECT_THAT(worker->Submit(submission),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("tensor grad"), HasSubstr("captured into a CUDA graph"))));
  Stop(*worker);
}

TEST_F(NcclTensorsTest, CollectivesOfARankAreOnOneDevice) {
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

}  // namespace
}  // namespace coordd
