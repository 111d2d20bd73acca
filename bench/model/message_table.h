// The messages of a collective's schedules, as far as they have to be followed. PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "bench/model/symmetry.h"

namespace coordd::model {

// What a rank sends to one other in a step, as one train: messages behind each other.
struct Train {
  int64_t bytes = 0;
  int32_t messages = 0;  // segments of at most segment_bytes
  int32_t from = 0;      // a followed rank
  int32_t to = 0;        // the followed rank that stands for who receives it
  int32_t to_step = 0;   // the step, of all, in which that one waits for it
  bool leaves_rack = false;
};

// A step of a followed rank.
struct Step {
  int32_t first_train = 0, trains = 0;  // that it sends
  int32_t receives = 0;                 // trains
  int64_t combined_bytes = 0;           // of what it receives
  int64_t last_segment_bytes = 0;       // of those, which nothing that still arrives hides
  int64_t local_bytes = 0;              // that it combines or copies behind that
};

// Steps of followed rank r are steps[first_step[r]] up to first_step[r + 1].
struct MessageTable {
  std::vector<Train> trains;
  std::vector<Step> steps;
  std::vector<int32_t> first_step;
  int32_t followed() const { return static_cast<int32_t>(first_step.size()) - 1; }
};

// INTERNAL: the schedules do not belong together: somebody waits for what nobody sends.
absl::StatusOr<MessageTable> TableOf(const MakesSchedule& make, const Symmetry& symmetry,
                                     int32_t nodes, int32_t rack_size, int64_t segment_bytes);

}  // namespace coordd::model
