// Executes one schedule of one collective over a Transport, a piece at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "worker/algorithms/collective_schedule.h"
#include "worker/interfaces/lane_run.h"
#include "worker/interfaces/transport.h"

namespace coordd {

// Memory of a run; all of it stays valid until the run is finished. Input and output may be the
// same memory.
struct RunBuffers {
  absl::Span<const std::byte> input;
  absl::Span<std::byte> output;
  absl::Span<std::byte> scratch;   // TransferSchedule::scratch_bytes
  absl::Span<std::byte> segments;  // CollectiveRun::SegmentScratchBytes
};

// Who takes part: which rank of the transport each rank of the schedule is. When it is empty, the
// numbers are the same.
using RunMembers = absl::Span<const Rank>;

struct RunOptions {
  // Transfers are cut into segments of this size, on both sides alike: while one is combined the
  // next one arrives, and a tensor of any size needs scratch for two. A multiple of 8 (whole
  // elements of every dtype); 256 KiB: what UCX over TCP sends as one message without a rendezvous
  // (UcxContext), and where that is read it is still in the second-level cache.
  int64_t segment_bytes = int64_t{256} << 10;
  // Of transfers of at least so much, in a schedule that combines nothing; 0: as of others.
  int64_t moved_segment_bytes = 0;

  int64_t SegmentBytesOf(int64_t transfer_bytes) const {
    const bool at_once = moved_segment_bytes > 0 && transfer_bytes >= moved_segment_bytes;
    return at_once ? moved_segment_bytes : segment_bytes;
  }
};

// A schedule over a Transport.
class CollectiveRun final : public LaneRun {
 public:
  // `transport` and what `members` points to outlive the run. `tag` names the collective on its
  // lane.
  CollectiveRun(TransferSchedule schedule, DataType dtype, ReduceOp op, Tag tag, RunBuffers buffers,
                Transport& transport, RunOptions options = {}, RunMembers members = {});
  CollectiveRun(const CollectiveRun&) = delete;
  CollectiveRun& operator=(const CollectiveRun&) = delete;

  // Begins anew, as another collective of the same schedule, scratch and transport. REQUIRES: it
  // has finished, with OK; the memory has the sizes of that before.
  void Restart(Tag tag, absl::Span<const std::byte> input, absl::Span<std::byte> output,
               RunMembers members);

  // The size of `segments` that a schedule needs; 0 if it does not combine what it receives.
  static int64_t SegmentScratchBytes(const TransferSchedule& schedule, const RunOptions& options);

  // Posts what can be posted, and completes steps.
  bool Advance() override;
  void Fail(absl::Status status) override;
  bool finished() const override {
    return in_flight_ == 0 && (!status_.ok() || step_ == schedule_.steps.size());
  }
  const absl::Status& status() const override { return status_; }

 private:
  // Segments of one send or receive of the current step.
  struct Transfer {
    int64_t segments = 0;
    int64_t posted = 0;
    int64_t completed = 0;
    int64_t combined_before = 0;  // segments that the step combines in transfers before this one
    int32_t in_flight() const { return static_cast<int32_t>(posted - completed); }
    bool all_posted() const { return posted == segments; }
    bool done() const { return completed == segments; }
    // Which half of the segments' memory is that of one.
    size_t HalfOf(int64_t segment) const {
      return static_cast<size_t>((combined_before + segment) % 2);
    }
  };

  // How many segments of a transfer may be in flight behind that of `before`, which had `room`:
  // what goes between two ranks goes in its order. `most`: of one between others.
  static int32_t RoomBehind(const Transfer& before, bool is_same_rank, int32_t room, int32_t most);

  void StartStep();
  bool PostSends(const AlgorithmStep& step);
  bool PostReceives(const AlgorithmStep& step);
  bool StepDone() const;
  void RunLocals(const AlgorithmStep& step);
  void OnSent(size_t index, absl::Status status);
  void OnReceived(size_t index, absl::Status status);
  void OnOperand(size_t index, int64_t segment, absl::StatusOr<const std::byte*> bytes);

  Rank OnTransport(Rank rank) const {
    return members_.empty() ? rank : members_[static_cast<size_t>(ToInt(rank))];
  }
  Tag TagOf(int64_t segment) const { return {tag_.lane, tag_.sequence, tag_.part, segment}; }
  int64_t SegmentsOf(int64_t size_bytes) const;
  BufferRange Segment(const BufferRange& slice, int64_t segment) const;
  absl::Span<const std::byte> Read(const BufferRange& slice) const;
  absl::Span<std::byte> Write(const BufferRange& slice) const;
  absl::Span<std::byte> ScratchSegment(size_t half, int64_t size_bytes) const;
  void Combine(const BufferRange& to, const std::byte* first, const std::byte* second) const;

  // Constant after construction.
  const TransferSchedule schedule_;
  const DataType dtype_;
  const ReduceOp op_;
  Transport& transport_;
  const RunOptions options_;
  const int64_t second_half_;  // where it begins

  // Touched by the owner's thread.
  Tag tag_;
  RunBuffers buffers_;
  RunMembers members_;
  size_t step_ = 0;
  bool step_started_ = false;
  std::vector<Transfer> sends_;
  std::vector<Transfer> receives_;
  std::array<bool, 2> half_busy_ = {false, false};
  int64_t in_flight_ = 0;
  absl::Status status_;
};

}  // namespace coordd
