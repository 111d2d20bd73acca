// NcclBackend against the suite that every backend passes: over the fake libraries, or, by
// tests/gpu/run, over real ones with as many ranks as there are GPUs.
#include <gmock/gmock.h>

#include "tests/support/gpu/fake_gpu.h"
#include "tests/worker/support/collective_backend_conformance.h"
#include "tests/worker/support/device_copies.h"
#include "tests/worker/support/hierarchical_ranks.h"
#include "tests/worker/support/in_process_transport.h"
#include "worker/gpu/nccl/nccl_backend.h"

namespace coordd {
namespace {

// Under a sanitizer most of the time goes into moving large buffers through the stand-ins, which
// are not what is tested; other builds have all of them.
#ifdef COORDD_SANITIZED_TEST
constexpr bool kLargeOfEveryType = false;
#else
constexpr bool kLargeOfEveryType = true;
#endif

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
          .blames_lost_peers = false,
          .large_of_every_type = kLargeOfEveryType};
}

// The same with nodes of two ranks, whose allreduces meet on the host; a world or a group that is
// not made of several such nodes goes flat. Chunks are so small that the suite's larger buffers are
// several.
BackendCase Hierarchical(std::string name, int32_t max_world_size) {
  BackendCase hierarchical = Nccl(std::move(name), max_world_size);
  hierarchical.new_group = [](int32_t world_size) {
    auto runtime = OpenTestGpus();
    auto network = std::make_shared<InProcessNetwork>(world_size);
    auto next_device = std::make_shared<std::atomic<int32_t>>(0);
    return [runtime, network, next_device]() -> std::unique_ptr<CollectiveBackend> {
      NcclBackendOptions options;
      options.device = (*next_device)++;
      auto host = std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(*network));
      return std::make_unique<DeviceCopies>(
          std::make_unique<HierarchicalRank>(
              HierarchicalRank::Options{.chunk_bytes = 1024},
              std::make_unique<NcclBackend>(runtime, Clock::Real(), options), std::move(host)),
          *runtime->device, options.device);
    };
  };
  return hierarchical;
}

// Three ranks have neighbours that differ, and a remainder in what is split.
int32_t RanksMax() { return std::min(3, OpenTestGpus()->device->device_count()); }

// Two nodes of two.
int32_t HierarchicalRanksMax() { return std::min(4, OpenTestGpus()->device->device_count()); }

INSTANTIATE_TEST_SUITE_P(Nccl, CollectiveBackendConformance,
                         testing::Values(Nccl("Ranks", RanksMax()),
                                         Hierarchical("NodesOfTwo", HierarchicalRanksMax())),
                         [](const auto& info) { return info.param.name; });

// After everything else in this program.
class NoRuleBroken : public testing::Environment {
 public:
  void TearDown() override {
    if (ReadEnvironment().count("COORDD_TEST_GPU") > 0) return;  // the stand-ins need not be there
    EXPECT_EQ(TakeBrokenNcclRule(), "");
    EXPECT_EQ(FakeNcclLiveCommunicators(), 0);
    EXPECT_EQ(FakeCudaLiveObjects(), 0);
  }
};
const auto* const kNoRuleBroken = testing::AddGlobalTestEnvironment(new NoRuleBroken);

}  // namespace
}  // namespace coordd
