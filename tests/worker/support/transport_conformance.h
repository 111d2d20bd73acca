// What every Transport must do. A test program links transport_conformance.cc and instantiates the
// suite with its cases:
//   INSTANTIATE_TEST_SUITE_P(Shm, TransportConformance, testing::Values(...));
#pragma once

#include <gtest/gtest.h>

#include "tests/worker/support/rank_group.h"
#include "worker/interfaces/transport.h"

namespace coordd {

using TransportCase = GroupCase<Transport>;
using TransportContext = RankContext<Transport>;

class TransportConformance : public testing::TestWithParam<TransportCase> {};

}  // namespace coordd
