// Collectives that a program captures into CUDA graphs, through a whole worker.
#include "worker/gpu/plane/device_graphs.h"

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/dynamic_library.h"
#include "tests/worker/support/closed_store.h"
#include "tests/worker/support/device_tensors_fixture.h"
#include "worker/gpu/cuda/device_kernels.h"
#include "worker/gpu/cuda/stream_capture.h"
#include "worker/interfaces/idle_wait.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DeviceGraphsTest : public DeviceTensorsTest {
 protected:
  DeviceGraphsTest() {
    auto driver = DynamicLibrary::Open(FakeCudaPath());
    EXPECT_TRUE(driver.ok());
    launch_ = driver->Function<CudaResult(void*, CudaStream)>("cuGraphLaunch");
    instantiate_ = driver->Function<CudaResult(void**, CudaGraph, unsigned long long)>(
        "cuGraphInstantiateWithFlags");
    destroy_ = driver->Function<CudaResult(void*)>("cuGraphExecDestroy");
  }

  // What a program has captured, ready to be launched.
  std::shared_ptr<void> Capture(const std::function<absl::Status()>& enqueue) {
    const auto graph = CaptureGraph(device_, kDevice, stream_.get(), enqueue);
    EXPECT_THAT(graph, IsOk());
    void* ready = nullptr;
    const auto captured = static_cast<CudaGraph>(const_cast<void*>(graph->get()));
    EXPECT_EQ(instantiate_(&ready, captured, 0), kCudaSuccess);
    return {ready, [this](void* ending) { destroy_(ending); }};
  }
  Submission Captured(CollectiveKind kind, float* input, float* output) const {
    Submission submission = Of(kind, "grad", input, output);
    submission.stream = reinterpret_cast<uintptr_t>(stream_.get());
    return submission;
  }
  std::shared_ptr<void> CaptureAllreduce(Worker& worker, float* values, double factor) {
    return Capture([&]() -> absl::Status {
      Submission submission = Captured(CollectiveKind::kAllreduce, values, values);
      submission.spec.postscale_factor = factor;
      const auto work = worker.Submit(submission);
      EXPECT_THAT(work, IsOk());
      EXPECT_TRUE((*work)->done());
      return absl::OkStatus();
    });
  }
  void Launch(const std::shared_ptr<void>& graph) {
    EXPECT_EQ(launch_(graph.get(), stream_.get()), kCudaSuccess);
  }
  void Synchronize() {
    DeviceEvent end = DeviceEvent::Create(*device_, kDevice).value();
    ASSERT_THAT(end.Record(stream_.get()), IsOk());
    IdleWait idle(1, 1);
    while (!end.Happened().value()) idle.Wait();
  }

  DeviceStream stream_ = DeviceStream::Create(*device_, kDevice).value();
  CudaResult (*launch_)(void*, CudaStream);
  CudaResult (*instantiate_)(void**, CudaGraph, unsigned long long);
  CudaResult (*destroy_)(void*);
};

TEST_F(DeviceGraphsTest, WhatIsCapturedRunsWithEachLaunch) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  ASSERT_THAT(worker->PrepareGraphs(ProcessSetId{0}, kDevice, kHangLimit), IsOk());
  float* const values = NewTensor(1.0f);
  const auto graph = CaptureAllreduce(*worker, values, 3.0);
  EXPECT_EQ(values[0], 1.0f);
  Launch(graph);
  Launch(graph);
  Synchronize();
  EXPECT_EQ(values[0], 9.0f);
  EXPECT_EQ(values[3], 9.0f);
  EXPECT_THAT(worker->CheckGraphs(ProcessSetId{0}, kHangLimit), IsOk());
  Stop(*worker);
}

TEST_F(DeviceGraphsTest, ASetThatIsNotPreparedIsRefusedWithWhatToCall) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  float* const values = NewTensor(1.0f);
  const auto graph = CaptureGraph(device_, kDevice, stream_.get(), [&]() -> absl::Status {
    EXPECT_THAT(worker->Submit(Captured(CollectiveKind::kAllreduce, values, values)),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("tensor grad"), HasSubstr("captured into a CUDA graph"),
                               HasSubstr("coordd_graphs_prepare"))));
    return absl::OkStatus();
  });
  EXPECT_THAT(graph, IsOk());
  EXPECT_THAT(worker->CheckGraphs(ProcessSetId{0}, kHangLimit),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("prepare")));
  Stop(*worker);
}

TEST_F(DeviceGraphsTest, WithoutNcclNothingIsPrepared) {
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/false);
  EXPECT_THAT(worker->PrepareGraphs(ProcessSetId{0}, kDevice, kHangLimit),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("NCCL")));
  Stop(*worker);
}

TEST_F(DeviceGraphsTest, ALostGenerationsLaunchIsHeldUntilTheProgramKnowsAndLeavesNoNumber) {
  options_.on_failure = OnFailure::kRaise;
  const auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  ASSERT_THAT(worker->PrepareGraphs(ProcessSetId{0}, kDevice, kHangLimit), IsOk());
  float* const values = NewTensor(1.0f);
  const auto graph = CaptureAllreduce(*worker, values, 1.0);
  DeviceKernels kernels = DeviceKernels::Load(*device_, kDevice).value();
  const DeviceMemory word = DeviceMemory::AllocatePinned(*device_, kDevice, 4).value();
  auto* const closed = new (word.data()) std::atomic<uint32_t>(1);
  ASSERT_THAT(kernels.Gate(closed, stream_.get()), IsOk());
  Launch(graph);
  DeviceEvent behind = DeviceEvent::Create(*device_, kDevice).value();
  ASSERT_THAT(behind.Record(stream_.get()), IsOk());
  ChangeGeneration();
  *closed = 0;
  // It has come to its end there, and is held: an event that never comes cannot be waited for.
  for (int look = 0; look < 100; ++look) {
    EXPECT_FALSE(behind.Happened().value());
    std::this_thread::yield();
  }
  EXPECT_EQ(values[0], 1.0f);
  ASSERT_THAT(worker->AwaitGeneration(Clock::Real().Now() + kHangLimit), IsOk());
  Synchronize();
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_TRUE(std::isnan(values[3]));
  // A program that launches it again gets no number, and does not wait for anybody.
  std::fill_n(values, 4, 5.0f);
  Launch(graph);
  Synchronize();
  EXPECT_TRUE(std::isnan(values[0]));
  Stop(*worker);
}

TEST_F(DeviceGraphsTest, ItsCommunicatorIsFreedWhenTheProgramsGraphsAreGone) {
  while (FakeNcclLiveCommunicators() > 0) std::this_thread::yield();  // of other tests
  auto worker = Start(/*with_devices=*/true, /*with_nccl=*/true);
  ASSERT_THAT(worker->PrepareGraphs(ProcessSetId{0}, kDevice, kHangLimit), IsOk());
  EXPECT_EQ(FakeNcclLiveCommunicators(), 1);
  float* const values = NewTensor(1.0f);
  auto graph = CaptureAllreduce(*worker, values, 1.0);
  Stop(*worker);
  worker.reset();  // waits for nobody's graphs
  EXPECT_EQ(FakeNcclLiveCommunicators(), 1);
  Launch(graph);
  Synchronize();
  EXPECT_TRUE(std::isnan(values[0]));
  graph.reset();
  while (FakeNcclLiveCommunicators() > 0) std::this_thread::yield();
  EXPECT_EQ(TakeBrokenNcclRule(), "");
}

// Two ranks that have prepared, whose store will be closed.
class DeviceGraphsEndTest : public ::testing::Test {
 protected:
  DeviceGraphsEndTest() {
    for (int32_t rank = 0; rank < 2; ++rank) {
      GpuSeams seams;
      seams.open_devices = [this]() -> absl::StatusOr<std::shared_ptr<DeviceRuntime>> {
        return nccl_->device;
      };
      seams.open_nccl =
          [this](std::shared_ptr<DeviceRuntime>) -> absl::StatusOr<std::shared_ptr<NcclRuntime>> {
        return nccl_;
      };
      accesses_.push_back(std::make_unique<GpuAccess>(std::move(seams)));
      DeviceGraphs::Hooks hooks;
      hooks.claim = [](int32_t) { return absl::OkStatus(); };
      hooks.agree = [](ProcessSetId) {
        DeviceDecision decision;
        decision.nccl = true;
        return std::make_optional<absl::StatusOr<DeviceDecision>>(decision);
      };
      hooks.failed = [] {};
      NcclBackendOptions options;
      options.device = rank;
      ranks_.push_back(std::make_unique<DeviceGraphs>(GroupLayout::OneNode(Rank{rank}, 2),
                                                      *accesses_.back(), store_, Clock::Real(),
                                                      options, std::move(hooks)));
    }
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([this, rank] {
        EXPECT_THAT(ranks_[static_cast<size_t>(rank)]->Prepare(ProcessSetId{0}, rank, Limit()),
                    IsOk());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  ~DeviceGraphsEndTest() override {
    for (const auto& graphs : ranks_) {
      graphs->Abort();
      graphs->Told();
    }
    for (const auto& graphs : ranks_) graphs->End();
  }

  static absl::Time Limit() { return Clock::Real().Now() + kHangLimit; }
  // The store is closed behind so many calls of this check.
  void ExpectEnd(size_t rank, int calls) {
    left_ = calls;
    EXPECT_THAT(ranks_[rank]->Check(ProcessSetId{0}, Limit()),
                StatusIs(absl::StatusCode::kAborted, testing::EndsWith("generation 1 is over")));
    EXPECT_EQ(left_, 0);
    left_ = -1;
  }

  std::atomic<int> left_ = -1;
  ClosingStore store_{left_};
  std::shared_ptr<NcclRuntime> nccl_ = OpenFakeGpus();
  std::vector<std::unique_ptr<GpuAccess>> accesses_;
  std::vector<std::unique_ptr<DeviceGraphs>> ranks_;
};

// It is no mistake of the program's that its graphs cannot be compared then.
TEST_F(DeviceGraphsEndTest, AStoreThatIsClosedMeanwhileIsTheEndOfTheGeneration) {
  ExpectEnd(1, 0);  // while it says what it has captured,
  ExpectEnd(1, 1);  // and while it waits for the verdict
  ExpectEnd(0, 0);
  ExpectEnd(0, 3);  // of the second check, while it says the verdict
  ExpectEnd(0, 1);  // while it reads what the others have captured
}

}  // namespace
}  // namespace coordd
