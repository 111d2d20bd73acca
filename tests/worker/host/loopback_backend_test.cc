#include "worker/host/loopback_backend.h"

#include "tests/worker/support/collective_backend_conformance.h"

namespace coordd {
namespace {

INSTANTIATE_TEST_SUITE_P(Loopback, CollectiveBackendConformance,
                         testing::Values(BackendCase{
                             .name = "Alone",
                             .new_group =
                                 [](int32_t) {
                                   return []() -> std::unique_ptr<CollectiveBackend> {
                                     return std::make_unique<LoopbackBackend>();
                                   };
                                 },
                             .max_world_size = 1}),
                         [](const auto& info) { return info.param.name; });

TEST(LoopbackBackend, RefusesAWorldOfTwo) {
  InMemoryStore store;
  LoopbackBackend backend;
  EXPECT_TRUE(absl::IsInvalidArgument(
      backend.Connect(GroupLayout::OneNode(Rank{0}, 2), store, absl::InfiniteFuture())));
}

TEST(LoopbackBackend, AbortEndsWhatWasLaunched) {
  LoopbackBackend backend;
  absl::Status ended;
  ASSERT_TRUE(backend.Launch(CollectiveArgs(), [&](absl::Status s) { ended = std::move(s); }).ok());
  backend.Abort();
  backend.Progress();
  EXPECT_TRUE(absl::IsAborted(ended)) << ended;
}

}  // namespace
}  // namespace coordd
