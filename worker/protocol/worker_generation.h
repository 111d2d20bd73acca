// What a worker knows and does in one generation.
#pragma once

#include <cstdint>

#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/heard_messages.h"
#include "worker/protocol/launched_batches.h"
#include "worker/protocol/process_set_state.h"
#include "worker/protocol/scheduled_work.h"
#include "worker/protocol/slot_table.h"

namespace coordd {

// A part of WorkerState.
//
// Invariant: nothing in it is of an earlier generation, since the next one replaces all of it.
struct WorkerGeneration {
  // `sets`: of the generation before. REQUIRES: valid (common/protocol/process_set_parts.h).
  WorkerGeneration(Rank rank, int32_t size, int64_t slot_capacity, const v1::ProcessSets& sets)
      : slots(slot_capacity), process_sets(rank, size, sets), heard(sets.last_process_set()) {}

  SlotTable slots;
  ProcessSetState process_sets;
  LaunchedBatches launched;
  ScheduledWork schedules;
  HeardMessages heard;
};

}  // namespace coordd
