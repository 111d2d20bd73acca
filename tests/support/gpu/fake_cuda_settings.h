// What fake_cuda.so can be told (fake_cuda.h).
#pragma once

#include "tests/support/gpu/fake_settings.h"

namespace coordd {

inline FakeSettings& FakeCudaSettings() {
  static FakeSettings* settings = new FakeSettings("FAKE_CUDA", {{"devices", 8},
                                                                 {"driver", 13000},
                                                                 {"init_error", 0},
                                                                 {"memory_limit", 0},
                                                                 {"nvlink", 0},
                                                                 {"multicast", 0},
                                                                 {"capturing", 0},
                                                                 {"collectives", 0},
                                                                 {"free_locks", 1},
                                                                 {"capability", 9},
                                                                 {"mig", 0}});
  return *settings;
}

}  // namespace coordd
