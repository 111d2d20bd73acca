// NcclBackend against the suite that every backend passes: over the fake libraries, or, by
// tests/gpu/run, over real ones with as many ranks as there are GPUs.
#include <gmock/gmock.h>

#include "tests/support/gpu/fake_gpu.h"
#include "tests/worker/collective_backend_conformance.h"
#include "tests/worker/nccl/device_copies.h"
#include "worker/nccl/nccl_backend.h"

namespace coordd {
namespace {

// Ranks are threads, each with a device of its own; as the suite makes them, one after the other.
BackendCase Nccl(std::string name, int32_t max_world_size) {
  return {.name = std::move(name),
          .new_group =
              [](int32_t) {
                auto runtime = OpenTestGpus();
                auto next_device = std::make_shared<std::atomic<int32_t>>(0);
                return [runtime, next_device]() -> std::unique_ptr<CollectiveBackend> {
                  NcclBackendOptions options;
                  options.device = (*next_device)++;
                  return std::make_unique<DeviceCopies>(
                      std::make_unique<NcclBackend>(runtime, Clock::Real(), options),
                      *runtime->device, options.device);
                };
              },
          .max_world_size = max_world_size,
          .lanes_are_independent = false,
          .blames_lost_peers = false};
}

// Three ranks have neighbours that differ, and a remainder in what is split.
int32_t RanksMax() { return std::min(3, OpenTestGpus()->device->device_count()); }

INSTANTIATE_TEST_SUITE_P(Nccl, CollectiveBackendConformance,
                         testing::Values(Nccl("Ranks", RanksMax())),
                         [](const auto& info) { return info.param.name; });

// After everything else in this program.
class NoRuleBroken : public testing::Environment {
 public:
  void TearDown() override {
    EXPECT_EQ(TakeBrokenNcclRule(), "");
    EXPECT_EQ(FakeNcclLiveCommunicators(), 0);
    EXPECT_EQ(FakeCudaLiveObjects(), 0);
  }
};
const auto* const kNoRuleBroken = testing::AddGlobalTestEnvironment(new NoRuleBroken);

}  // namespace
}  // namespace coordd
