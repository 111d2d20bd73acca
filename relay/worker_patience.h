// How long a relay waits for a worker that reads nothing.
#pragma once

#include <cstddef>

#include "absl/time/time.h"

namespace coordd {

struct WorkerPatience {
  // For a worker that takes nothing of what it is sent, and for the link that it is at: gRPC does
  // not tell how much of a message is taken.
  absl::Duration takes = absl::Seconds(30);
  double slowest_bytes_per_second = 16 << 10;
  // For the end of a stream that is closing, however much is still to be sent: as coordd does.
  absl::Duration closes = absl::Seconds(5);

  absl::Duration ForMessage(size_t bytes) const {
    return takes + absl::Seconds(static_cast<double>(bytes) / slowest_bytes_per_second);
  }
};

}  // namespace coordd
