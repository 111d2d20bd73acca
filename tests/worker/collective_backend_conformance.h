// What every CollectiveBackend must do. A test program links collective_backend_conformance.cc and
// instantiates the suite with its cases:
//   INSTANTIATE_TEST_SUITE_P(Host, CollectiveBackendConformance, testing::Values(...));
#pragma once

#include <gtest/gtest.h>

#include "tests/worker/rank_group.h"
#include "worker/collective_backend.h"

namespace coordd {

using BackendCase = GroupCase<CollectiveBackend>;
using BackendContext = RankContext<CollectiveBackend>;

class CollectiveBackendConformance : public testing::TestWithParam<BackendCase> {
 protected:
  // Runs `body` in worlds of 1 to the case's largest.
  void InEveryWorld(const std::function<void(BackendContext&)>& body) {
    for (int32_t size = 1; size <= GetParam().max_world_size; ++size)
      RunRanks<CollectiveBackend>(GetParam(), size, body);
  }
  // Failures need peers.
  bool HasPeers() const { return GetParam().max_world_size > 1; }
};

}  // namespace coordd
