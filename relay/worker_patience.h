// How long a relay waits for a worker that reads nothing.
#pragma once

#include "absl/time/time.h"

namespace coordd {

struct WorkerPatience {
  // For a worker that takes nothing of what it is sent: no piece (message_pieces.h) of a long
  // message, and no short one.
  absl::Duration takes = absl::Seconds(30);
  // For the end of a stream that is closing, however much is still to be sent: as coordd does.
  absl::Duration closes = absl::Seconds(5);
};

}  // namespace coordd
