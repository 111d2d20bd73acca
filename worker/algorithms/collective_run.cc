#include "worker/algorithms/collective_run.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "worker/base/copy_bytes.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {
namespace {

// Segments to a rank that are posted at a time: enough that a transport never idles between two of
// them, few enough that its queues stay short.
constexpr int32_t kMaxPostedSegments = 4;
// Segments from a rank: more than a transport delivers between two turns of this one. What comes
// before its receive is kept, and copied once more; and the receives of the next turn take what was
// kept, so that it goes on like that. Of those that are combined there is room for two.
constexpr int32_t kMaxPlacedSegments = 32;

absl::Span<std::byte> SubspanOf(absl::Span<std::byte> buffer, const BufferRange& slice) {
  COORDD_CHECK(slice.offset_bytes >= 0 && slice.size_bytes >= 0 &&
               slice.offset_bytes + slice.size_bytes <= static_cast<int64_t>(buffer.size()));
  return buffer.subspan(static_cast<size_t>(slice.offset_bytes),
                        static_cast<size_t>(slice.size_bytes));
}

constexpr int64_t kSegmentAlignment = 64;

// What a schedule combines.
struct Combining {
  int64_t largest_bytes = 0;  // of a message
  bool several = false;       // messages in a step
  // The first of two segments.
  int64_t first_bytes(const RunOptions& options) const {
    if (largest_bytes >= options.segment_bytes) return options.segment_bytes;
    return (largest_bytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
  }
};

Combining CombiningOf(const TransferSchedule& schedule) {
  Combining combining;
  for (const AlgorithmStep& step : schedule.steps) {
    int32_t messages = 0;
    for (const ReceiveOp& receive : step.receives) {
      if (!receive.operand) continue;
      combining.largest_bytes = std::max(combining.largest_bytes, receive.to.size_bytes);
      combining.several = combining.several || ++messages > 1;
    }
  }
  return combining;
}

}  // namespace

CollectiveRun::CollectiveRun(TransferSchedule schedule, DataType dtype, ReduceOp op, Tag tag,
                             RunBuffers buffers, Transport& transport, RunOptions options,
                             RunMembers members)
    : schedule_(std::move(schedule)),
      dtype_(dtype),
      op_(op),
      transport_(transport),
      options_(options),
      second_half_(CombiningOf(schedule_).first_bytes(options)),
      tag_(tag),
      buffers_(buffers),
      members_(members) {
  COORDD_CHECK(options_.segment_bytes > 0 && options_.segment_bytes % 8 == 0);
}

void CollectiveRun::Restart(Tag tag, absl::Span<const std::byte> input,
                            absl::Span<std::byte> output, RunMembers members) {
  COORDD_CHECK(finished() && status_.ok());
  tag_ = tag;
  buffers_.input = input;
  buffers_.output = output;
  members_ = members;
  step_ = 0;
  step_started_ = false;
}

int64_t CollectiveRun::SegmentScratchBytes(const TransferSchedule& schedule,
                                           const RunOptions& options) {
  const Combining combining = CombiningOf(schedule);
  if (combining.several) return 2 * combining.first_bytes(options);
  // Of two segments, the second one is not needed by a transfer that fits the first.
  return std::min(combining.largest_bytes, 2 * options.segment_bytes);
}

bool CollectiveRun::Advance() {
  bool moved = false;
  while (status_.ok() && step_ < schedule_.steps.size()) {
    const AlgorithmStep& step = schedule_.steps[step_];
    if (!step_started_) StartStep();
    moved |= PostReceives(step);
    moved |= PostSends(step);
    if (!StepDone()) break;
    RunLocals(step);
    ++step_;
    step_started_ = false;
    moved = true;
  }
  return moved;
}

void CollectiveRun::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

void CollectiveRun::StartStep() {
  const AlgorithmStep& step = schedule_.steps[step_];
  sends_.assign(step.sends.size(), Transfer());
  for (size_t i = 0; i < step.sends.size(); ++i)
    sends_[i].segments = SegmentsOf(step.sends[i].from.size_bytes);
  receives_.assign(step.receives.size(), Transfer());
  int64_t combined = 0;
  for (size_t i = 0; i < step.receives.size(); ++i) {
    receives_[i].segments = SegmentsOf(step.receives[i].to.size_bytes);
    receives_[i].combined_before = combined;
    if (step.receives[i].operand) combined += receives_[i].segments;
  }
  step_started_ = true;
}

int32_t CollectiveRun::RoomBehind(const Transfer& before, bool is_same_rank, int32_t room,
                                  int32_t most) {
  if (!is_same_rank) return most;
  return before.all_posted() ? room - before.in_flight() : 0;
}

bool CollectiveRun::PostSends(const AlgorithmStep& step) {
  bool moved = false;
  int32_t room = 0;
  for (size_t i = 0; i < step.sends.size(); ++i) {
    Transfer& transfer = sends_[i];
    room = i == 0 ? kMaxPostedSegments
                  : RoomBehind(sends_[i - 1], step.sends[i].to == step.sends[i - 1].to, room,
                               kMaxPostedSegments);
    while (!transfer.all_posted() && transfer.in_flight() < room) {
      const BufferRange part = Segment(step.sends[i].from, transfer.posted);
      ++transfer.posted;
      ++in_flight_;
      transport_.Send(OnTransport(step.sends[i].to), TagOf(transfer.posted - 1), Read(part),
                      [this, i](absl::Status status) { OnSent(i, std::move(status)); });
      moved = true;
    }
  }
  return moved;
}

bool CollectiveRun::PostReceives(const AlgorithmStep& step) {
  bool moved = false;
  int32_t room = 0;
  for (size_t i = 0; i < step.receives.size(); ++i) {
    const ReceiveOp& receive = step.receives[i];
    Transfer& transfer = receives_[i];
    room = i == 0 ? kMaxPlacedSegments
                  : RoomBehind(receives_[i - 1], receive.from == step.receives[i - 1].from, room,
                               kMaxPlacedSegments);
    while (!transfer.all_posted() && transfer.in_flight() < room) {
      const int64_t segment = transfer.posted;
      const BufferRange part = Segment(receive.to, segment);
      if (receive.operand) {
        bool& busy = half_busy_[transfer.HalfOf(segment)];
        if (busy) break;
        busy = true;
      }
      ++transfer.posted;
      ++in_flight_;
      if (receive.operand) {
        transport_.ReceiveInPlace(OnTransport(receive.from), TagOf(segment),
                                  ScratchSegment(transfer.HalfOf(segment), part.size_bytes),
                                  [this, i, segment](absl::StatusOr<const std::byte*> bytes) {
                                    OnOperand(i, segment, std::move(bytes));
                                  });
      } else {
        transport_.Receive(OnTransport(receive.from), TagOf(segment), Write(part),
                           [this, i](absl::Status status) { OnReceived(i, std::move(status)); });
      }
      moved = true;
    }
  }
  return moved;
}

bool CollectiveRun::StepDone() const {
  auto done = [](const Transfer& transfer) { return transfer.done(); };
  return std::all_of(sends_.begin(), sends_.end(), done) &&
         std::all_of(receives_.begin(), receives_.end(), done);
}

void CollectiveRun::RunLocals(const AlgorithmStep& step) {
  for (const LocalOp& local : step.locals) {
    const std::byte* first = Read(local.first).data();
    std::byte* to = Write(local.to).data();
    if (local.second) {
      Combine(local.to, first, Read(*local.second).data());
    } else {
      CopyBytes(to, first, local.to.size_bytes);
    }
  }
}

void CollectiveRun::OnSent(size_t index, absl::Status status) {
  --in_flight_;
  if (!status.ok()) return Fail(std::move(status));
  ++sends_[index].completed;
}

void CollectiveRun::OnReceived(size_t index, absl::Status status) {
  --in_flight_;
  if (!status.ok()) return Fail(std::move(status));
  ++receives_[index].completed;
}

void CollectiveRun::OnOperand(size_t index, int64_t segment,
                              absl::StatusOr<const std::byte*> bytes) {
  if (bytes.ok()) {
    const ReceiveOp& receive = schedule_.steps[step_].receives[index];
    const BufferRange part = Segment(receive.to, segment);
    Combine(part, *bytes, Read(Segment(*receive.operand, segment)).data());
    half_busy_[receives_[index].HalfOf(segment)] = false;
  }
  OnReceived(index, bytes.status());
}

int64_t CollectiveRun::SegmentsOf(int64_t size_bytes) const {
  // An empty message is one segment: barriers consist of them.
  const int64_t segment_bytes = options_.SegmentBytesOf(size_bytes);
  return std::max<int64_t>(1, (size_bytes + segment_bytes - 1) / segment_bytes);
}

BufferRange CollectiveRun::Segment(const BufferRange& slice, int64_t segment) const {
  const int64_t segment_bytes = options_.SegmentBytesOf(slice.size_bytes);
  const int64_t begin = segment * segment_bytes;
  return {slice.buffer, slice.offset_bytes + begin,
          std::min(segment_bytes, slice.size_bytes - begin)};
}

absl::Span<const std::byte> CollectiveRun::Read(const BufferRange& slice) const {
  if (slice.buffer != BufferRole::kInput) return Write(slice);
  COORDD_CHECK(slice.offset_bytes >= 0 && slice.offset_bytes + slice.size_bytes <=
                                              static_cast<int64_t>(buffers_.input.size()));
  return buffers_.input.subspan(static_cast<size_t>(slice.offset_bytes),
                                static_cast<size_t>(slice.size_bytes));
}

absl::Span<std::byte> CollectiveRun::Write(const BufferRange& slice) const {
  COORDD_CHECK(slice.buffer != BufferRole::kInput);
  return SubspanOf(slice.buffer == BufferRole::kOutput ? buffers_.output : buffers_.scratch, slice);
}

absl::Span<std::byte> CollectiveRun::ScratchSegment(size_t half, int64_t size_bytes) const {
  return SubspanOf(buffers_.segments,
                   {BufferRole::kScratch, half == 0 ? 0 : second_half_, size_bytes});
}

void CollectiveRun::Combine(const BufferRange& to, const std::byte* first,
                            const std::byte* second) const {
  Reduce(dtype_, op_, Write(to).data(), first, second, to.size_bytes / SizeOf(dtype_));
}

}  // namespace coordd
