// A lane of the host backend: its batches, one behind the other, and what is kept from one to the
// next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/algorithms/algorithm_table.h"
#include "worker/algorithms/collective_run.h"
#include "worker/algorithms/slice_exchange.h"
#include "worker/base/aligned_buffer.h"
#include "worker/host/host_group.h"
#include "worker/interfaces/collective_backend.h"
#include "worker/interfaces/lane_run.h"
#include "worker/interfaces/transport.h"
#include "worker/node/node_lane.h"

namespace coordd {

// The schedule of a small collective with the run that has executed it, for the next one that says
// the same: making both takes this rank longer than what it says to the others.
class KeptRun {
 public:
  // Of both buffers together.
  static constexpr size_t kBytesMax = size_t{64} << 10;

  // Whether the run that is kept does what these say, on whatever memory of the program.
  bool Does(const CollectiveArgs& args) const;
  // The run of these has begun; it is kept when it has ended well, if that is worth it. What was
  // kept before is gone.
  void Expect(const CollectiveArgs& args, CollectiveRun& run);
  // Takes a run that has ended, if it is the one that is expected.
  void Keep(std::unique_ptr<LaneRun>& run);
  // REQUIRES: Does(args).
  std::unique_ptr<LaneRun> Begin(const CollectiveArgs& args, RunMembers members);
  // The scratch memory of what is kept is about to go.
  void Forget();

 private:
  // What the run does.
  CollectiveKind kind_ = CollectiveKind::kBarrier;
  DataType dtype_ = DataType::kUint8;
  ReduceOp op_ = ReduceOp::kNone;
  Rank root_;
  size_t input_bytes_ = 0, output_bytes_ = 0;
  std::vector<int64_t> input_block_bytes_, output_block_bytes_;

  CollectiveRun* expected_ = nullptr;  // running or kept; nullptr: there is none
  std::unique_ptr<LaneRun> kept_;      // the same, while it does not run
};

struct HostBatch {
  CollectiveArgs args;
  const HostGroup* group = nullptr;  // lives as long as something of it is in flight
  CollectiveBackend::Done done;
};

// One thread uses it, that of the backend's owner.
struct HostLane {
  std::list<HostBatch> queue;               // the front one is running
  std::list<HostBatch> spare;               // at most one, empty: for its memory
  AlignedBuffer memory;                     // scratch, kept from batch to batch
  std::unique_ptr<NodeLane> node;           // of a group on mapped memory
  absl::Span<std::byte> staging;            // of the arena, kept from batch to batch
  std::unique_ptr<SliceExchange> exchange;  // a part of the run
  std::unique_ptr<LaneRun> run;             // nullptr: the front one has not started
  KeptRun kept;
  absl::Status failure;  // of this lane alone

  void Put(HostBatch batch);
  void RemoveFront();
  // Has so much scratch. RESOURCE_EXHAUSTED.
  absl::Status MakeRoom(int64_t scratch_bytes);
  // Begins a run of messages by the schedule of the algorithm. Without memory it has failed.
  void StartSchedule(const CollectiveArgs& args, const HostGroup& group, Algorithm algorithm,
                     const RunOptions& options, Transport& transport);
  // REQUIRES: the run has finished.
  void EndRun();
};

}  // namespace coordd
