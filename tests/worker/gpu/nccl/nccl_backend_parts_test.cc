// The parts of NcclBackend: its buffers, and the watchdog that may be aborted before it is there.
#include <gtest/gtest.h>

#include "tests/worker/support/nccl_backend_fixture.h"
#include "worker/gpu/nccl/hierarchy_buffers.h"
#include "worker/gpu/nccl/late_watchdog.h"
#include "worker/gpu/nccl/nccl_fusion_buffers.h"

namespace coordd {
namespace {

class NcclBackendPartsTest : public NcclBackendTest {};

TEST_F(NcclBackendPartsTest, TheWindowIsTheFirstFusionBufferThatFits) {
  const auto window = NcclMemory::Allocate(runtime_, 0, 4096).value();
  const auto size = static_cast<int64_t>(window->span().size());
  NcclFusionBuffers buffers(runtime_, 0, window);
  EXPECT_EQ(buffers.window().data(), window->span().data());
  EXPECT_NE(buffers.Allocate(size + 1).value().data(), window->span().data());
  EXPECT_EQ(buffers.Allocate(size).value().data(), window->span().data());
  EXPECT_NE(buffers.Allocate(size).value().data(), window->span().data());
  // Once for all communicators.
  size_t first = 0, second = 0;
  buffers.NoteWindow(&first);
  buffers.NoteWindow(&second);
  EXPECT_EQ(first, 1u);
  EXPECT_EQ(buffers.registered_bytes(), size);
}

TEST_F(NcclBackendPartsTest, SlotsStayUntilLargerOnesAreNeeded) {
  HierarchyBuffers buffers(runtime_, 0);
  const auto small = buffers.SlotsOf(1000).value();
  EXPECT_EQ(small->slot_bytes(), 1024);
  EXPECT_EQ(buffers.SlotsOf(500).value(), small);
  const auto large = buffers.SlotsOf(1025).value();
  EXPECT_NE(large, small);
  EXPECT_EQ(buffers.SlotsOf(10).value(), large);
}

TEST_F(NcclBackendPartsTest, AWatchdogThatComesAfterTheAbortHasFailed) {
  static std::atomic<uint32_t> word = 0;  // outlives what NCCL may be left with
  const auto make = [&] { return std::make_unique<NcclWatchdog>(Clock::Real(), &word); };
  LateWatchdog late;
  EXPECT_EQ(late.get(), nullptr);
  late.Abort();
  late.Start(make());
  EXPECT_TRUE(late->failed());
  late.End();

  LateWatchdog early;
  early.Start(make());
  EXPECT_FALSE(early->failed());
  early.Abort();
  EXPECT_TRUE(early->failed());
  early.End();
}

}  // namespace
}  // namespace coordd
