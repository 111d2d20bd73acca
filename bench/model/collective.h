// A collective between nodes of one rank each, and the ways to carry it out: the schedules of
// worker/algorithms, whole or in slices. PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/model/network.h"
#include "bench/model/simulation.h"
#include "bench/model/symmetry.h"
#include "common/protocol/types.h"
#include "worker/algorithms/algorithm_table.h"

namespace coordd::model {

// Of float32; `bytes` of the whole vector, of an allgather's output, of a reducescatter's and an
// alltoall's input.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllreduce;
  int64_t bytes = 0;
  int32_t nodes = 0;
  bool labelled = false;  // whether the nodes' racks are known
};

// A way, by the name of its schedule: "ring", "slices of ring".
struct Way {
  std::string name;
  MakesSchedule make;  // of a piece
  Pieces pieces;
};

// All that there are for it.
std::vector<Way> WaysOf(const Collective& collective, const Network& network);

// The one that ranks would take, by the name of the table's algorithm.
Way ChoiceOf(const Collective& collective, const Network& network);

// Where blocks would differ by an element, all ranks but for those would do the same: bytes that
// divide evenly, at most a sixteenth more, or the same, where that is not to be had.
int64_t EvenBytes(int64_t bytes, int32_t nodes);

// What it takes.
absl::StatusOr<double> Microseconds(const Way& way, const Collective& collective,
                                    const Network& network);

}  // namespace coordd::model
