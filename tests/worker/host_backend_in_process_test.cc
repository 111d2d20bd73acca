#include "tests/worker/collective_backend_conformance.h"
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

HostBackendOptions With(Algorithm allreduce, int64_t segment_bytes) {
  return {.allreduce = allreduce, .run = {.segment_bytes = segment_bytes}};
}

// Each algorithm with every size, and segments so small that most transfers have several.
INSTANTIATE_TEST_SUITE_P(
    InProcess, CollectiveBackendConformance,
    testing::Values(Host("ByTable", {}), Host("Ring", With(Algorithm::kRing, 4096)),
                    Host("HalvingDoubling", With(Algorithm::kHalvingDoubling, 4096)),
                    Host("RecursiveDoubling", With(Algorithm::kRecursiveDoubling, 65536))),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace coordd
