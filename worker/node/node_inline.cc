#include "worker/node/node_inline.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "common/protocol/tensor_spec.h"
#include "worker/base/copy_bytes.h"
#include "worker/node/node_call.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {

bool NodeInlineRun::Fits(const CollectiveArgs& args, int32_t members, int64_t inline_bytes_max) {
  switch (args.kind) {
    case CollectiveKind::kBarrier:
      return true;
    case CollectiveKind::kAllgather:
      return *std::max_element(args.output_block_bytes.begin(), args.output_block_bytes.end()) <=
             inline_bytes_max;
    case CollectiveKind::kAlltoall:
      // Otherwise a member does not know how much the others have.
      return args.equal_blocks && SizeOf(args.input) <= inline_bytes_max;
    case CollectiveKind::kGather:
      return false;
    case CollectiveKind::kAllreduce:
      return SizeOf(args.input) * std::min(members, 8) <= inline_bytes_max;
    default:
      return SizeOf(NodeInputOf(args)) <= inline_bytes_max;
  }
}

NodeInlineRun::NodeInlineRun(const CollectiveArgs& args, NodeLane& lane)
    : args_(args),
      lane_(lane),
      call_(CallWord(args)),
      step_(lane.step() + 1),
      is_root_(ToInt(args.root) == lane.self()),
      scale_(NodeScaleOf(args)) {}

bool NodeInlineRun::Advance() {
  bool moved = false;
  if (phase_ == Phase::kPosting) {
    if (lane_.FirstBehind(step_ - 1) >= 0) return false;
    Post();
    phase_ = Phase::kPosted;
    moved = true;
  }
  if (phase_ == Phase::kPosted && HasInputs()) {
    different_ = FirstDifferent();
    if (different_ < 0) Finish();
    phase_ = different_ < 0 ? Phase::kFinished : Phase::kDifferent;
    moved = true;
  }
  return moved;
}

// The first of those that were waited for; -1: none.
int32_t NodeInlineRun::FirstDifferent() const {
  for (int32_t member = 0; member < lane_.size(); ++member)
    if (IsHeard(member) && lane_.CallOf(member, step_) != call_) return member;
  return -1;
}

absl::Status NodeInlineRun::Difference() const {
  return DifferentCalls(different_, lane_.CallOf(different_, step_), call_);
}

bool NodeInlineRun::WaitsFor(int32_t member) const {
  if (finished() || member == lane_.self()) return false;
  if (phase_ == Phase::kPosting) return !lane_.HasReached(member, step_ - 1);
  if (args_.kind == CollectiveKind::kBroadcast && member != ToInt(args_.root)) return false;
  return !lane_.HasReached(member, step_);
}

void NodeInlineRun::Post() {
  if (args_.kind != CollectiveKind::kBroadcast || is_root_) {
    const absl::Span<const std::byte> input = NodeInputOf(args_);
    const int64_t size_bytes = SizeOf(input);
    CopyBytes(lane_.Payload(step_) + BoardPost::PlaceFor(size_bytes), input.data(), size_bytes);
  }
  lane_.SayCall(step_, call_);
  lane_.Reach(step_);
}

// A root has nothing to hear from those it sends to, nor they from each other.
bool NodeInlineRun::HasInputs() const {
  if (args_.kind == CollectiveKind::kReduce && !is_root_) return true;
  if (args_.kind != CollectiveKind::kBroadcast) return lane_.FirstBehind(step_) < 0;
  return is_root_ || lane_.HasReached(ToInt(args_.root), step_);
}

// Whether HasInputs waits for the member.
bool NodeInlineRun::IsHeard(int32_t member) const {
  if (member == lane_.self()) return false;
  if (args_.kind == CollectiveKind::kReduce) return is_root_;
  return args_.kind != CollectiveKind::kBroadcast || member == ToInt(args_.root);
}

// This one's own is not read from its post, which the others are reading.
const std::byte* NodeInlineRun::InputOf(int32_t member, int64_t size_bytes) const {
  if (member == lane_.self()) return args_.input.data();
  return lane_.PayloadOf(member, step_) + BoardPost::PlaceFor(size_bytes);
}

void NodeInlineRun::Finish() {
  std::byte* const output = args_.output.data();
  int64_t offset = 0;
  switch (args_.kind) {
    case CollectiveKind::kBroadcast:
      if (!is_root_)
        CopyBytes(output, InputOf(ToInt(args_.root), SizeOf(args_.output)), SizeOf(args_.output));
      break;
    case CollectiveKind::kAllgather:
      for (int32_t m = 0; m < lane_.size(); ++m) {
        const int64_t block = args_.output_block_bytes[static_cast<size_t>(m)];
        // In place, the own one is there.
        if (const std::byte* const from = InputOf(m, block); from != output + offset)
          CopyBytes(output + offset, from, block);
        offset += block;
      }
      break;
    case CollectiveKind::kAlltoall: {
      const int64_t block = args_.output_block_bytes.front();
      for (int32_t m = 0; m < lane_.size(); ++m)
        CopyBytes(output + m * block, InputOf(m, SizeOf(args_.input)) + lane_.self() * block,
                  block);
      break;
    }
    case CollectiveKind::kReducescatter:
      for (int32_t m = 0; m < lane_.self(); ++m)
        offset += args_.input_block_bytes[static_cast<size_t>(m)];
      [[fallthrough]];
    case CollectiveKind::kAllreduce:
    case CollectiveKind::kReduce: {
      if (args_.kind == CollectiveKind::kReduce && !is_root_) break;
      absl::InlinedVector<const std::byte*, 8> sources;
      for (int32_t m = 0; m < lane_.size(); ++m)
        sources.push_back(InputOf(m, SizeOf(args_.input)) + offset);
      const int64_t count = SizeOf(args_.output) / coordd::SizeOf(args_.dtype);
      ReduceAll(args_.dtype, args_.op, output, sources, count);
      if (scale_ != 1.0) Scale(args_.dtype, scale_, output, count);
      break;
    }
    default:
      break;
  }
  lane_.Finish(step_);
  if (args_.kind != CollectiveKind::kBroadcast || is_root_)
    lane_.ExpectPayload(SizeOf(NodeInputOf(args_)));
}

}  // namespace coordd
