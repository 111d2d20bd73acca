#include <cstring>

#include "tests/worker/collective_backend_conformance.h"
#include "worker/aligned_buffer.h"
#include "worker/checking_backend.h"
#include "worker/host_backend.h"
#include "worker/in_process_transport.h"

namespace coordd {
namespace {

BackendCase Host(std::string name, HostBackendOptions options) {
  return {.name = std::move(name), .new_group = [options](int32_t world_size) {
            auto network = std::make_shared<InProcessNetwork>(world_size);
            return [network, options]() -> std::unique_ptr<CollectiveBackend> {
              return std::make_unique<HostBackend>(std::make_unique<InProcessTransport>(*network),
                                                   options);
            };
          }};
}

// Memory that all ranks have at the same addresses, so that ThreadSanitizer sees who touches what.
struct SharedMemories {
  explicit SharedMemories(int32_t ranks) {
    constexpr int64_t kArenaBytes = int64_t{64} << 20;
    for (int32_t r = 0; r < ranks; ++r) {
      buffers.emplace_back(kArenaBytes);
      std::memset(buffers.back().data(), 0, static_cast<size_t>(NodeBoard::SizeBytes()));
      memories.push_back(buffers.back().span());
    }
  }
  std::vector<AlignedBuffer> buffers;
  std::vector<NodeMemory> memories;
};

BackendCase OnSharedMemory(std::string name, NodeRunOptions options) {
  return {.name = std::move(name),
          .new_group =
              [options](int32_t world_size) {
                auto network = std::make_shared<InProcessNetwork>(world_size);
                auto shared = std::make_shared<SharedMemories>(world_size);
                return [network, shared, options]() -> std::unique_ptr<CollectiveBackend> {
                  return std::make_unique<HostBackend>(
                      std::make_unique<InProcessTransport>(*network),
                      HostBackendOptions{.node = options},
                      std::make_unique<NodeArena>(shared->memories));
                };
              },
          .max_world_size = 4};
}

// Every result of the suite compared with the reference besides.
BackendCase Checked(BackendCase of) {
  of.name = "Checked" + of.name;
  of.max_world_size = 3;
  of.new_group = [new_group = of.new_group](int32_t world_size) {
    return [make = new_group(world_size)]() -> std::unique_ptr<CollectiveBackend> {
      return std::make_unique<CheckingBackend>(make(), CheckingOptions{.tolerance = 1e-12});
    };
  };
  return of;
}

HostBackendOptions With(Algorithm allreduce, int64_t segment_bytes) {
  return {.allreduce = allreduce, .run = {.segment_bytes = segment_bytes}};
}

// Each algorithm with every size, and segments so small that most transfers have several.
INSTANTIATE_TEST_SUITE_P(
    InProcess, CollectiveBackendConformance,
    testing::Values(Host("ByTable", {}), Host("Ring", With(Algorithm::kRing, 4096)),
                    Host("HalvingDoubling", With(Algorithm::kHalvingDoubling, 4096)),
                    Host("RecursiveDoubling", With(Algorithm::kRecursiveDoubling, 65536)),
                    OnSharedMemory("SharedMemory",
                                   {.staging = {.buffer_bytes = 8192, .broadcast_bytes = 512},
                                    .stream_bytes_min = 65536,
                                    .work_bytes_max = 16384}),
                    Checked(Host("ByTable", {})), Checked(OnSharedMemory("SharedMemory", {}))),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace coordd
