#include "worker/node/node_mover.h"

#include <algorithm>

#include "common/protocol/tensor_spec.h"
#include "worker/base/copy_bytes.h"
#include "worker/node/node_inline.h"
#include "worker/numeric/reduce_kernels.h"

namespace coordd {
namespace {

// What goes to several places is made a tile at a time, which stays in the first-level cache with
// the parts of two inputs that it is made of.
constexpr int64_t kTileBytes = 4096;
// Copies to several places: the source stays in the second-level cache.
constexpr int64_t kCopyTileBytes = int64_t{64} << 10;

}  // namespace

bool IsInputMapped(const CollectiveArgs& args, const NodeLane& lane) {
  return args.input_parts.empty() && lane.IsMapped(NodeInputOf(args));
}

bool IsOutputMapped(const CollectiveArgs& args, const NodeLane& lane) {
  return args.output_parts.empty() && lane.IsMapped(args.output);
}

NodeMover::NodeMover(const CollectiveArgs& args, const NodeLane& lane,
                     absl::Span<std::byte> staging, SliceExchange* exchange, double scale)
    : args_(args),
      lane_(lane),
      staging_(staging),
      input_(NodeInputOf(args)),
      scale_(scale),
      exchange_(exchange) {}

void NodeMover::Begin(const NodeCollective& collective, const NodeMode& mode,
                      absl::Span<const NodePost> posts, bool streams) {
  collective_ = &collective;
  mode_ = &mode;
  posts_ = posts;
  streams_ = streams;
}

int64_t NodeMover::Stage(const NodeCollective& collective, const NodeMode& mode, int64_t piece) {
  int64_t staged_bytes = 0;
  std::byte* const buffer = staging_.data() + ShownAt(collective, mode, piece);
  for (const StagedRange& range : StagedRangesOf(collective, mode, piece)) {
    for (int64_t done = 0; done < range.size_bytes;) {
      const auto run = RunAt<const std::byte>(input_, args_.input_parts, range.from_bytes + done);
      const int64_t size_bytes = std::min(run.size_bytes, range.size_bytes - done);
      if (run.data != nullptr) CopyBytes(buffer + range.to_bytes + done, run.data, size_bytes);
      done += size_bytes;
    }
    staged_bytes += range.size_bytes;
  }
  return staged_bytes;
}

std::byte* NodeMover::OwnOutput(int64_t at) const {
  if (args_.output_parts.empty()) return args_.output.data() + at;
  return RunAt<std::byte>(args_.output, args_.output_parts, at).data;
}

const std::byte* NodeMover::OwnInput(int64_t at) const {
  if (args_.input_parts.empty()) return input_.data() + at;
  return RunAt<const std::byte>(input_, args_.input_parts, at).data;
}

std::byte* NodeMover::OutputOf(int32_t member, int64_t at) const {
  if (member == lane_.self()) return OwnOutput(at);
  return lane_.memory(member).data() + posts_[static_cast<size_t>(member)].output + at;
}

std::byte* NodeMover::HomeOf(const NodeOperation& operation, int64_t begin) const {
  switch (SliceHome(*collective_, *mode_)) {
    case NodeTarget::kRootOutput:
      return OutputOf(collective_->root, operation.from_bytes + begin);
    case NodeTarget::kSlice:
      return exchange_->Partial(operation.piece).data() + begin;
    default:
      return OwnOutput(operation.from_bytes + begin);
  }
}

absl::Span<std::byte> NodeMover::SliceOf(const NodeOperation& operation) const {
  return {HomeOf(operation, 0), static_cast<size_t>(operation.size_bytes)};
}

// How much of it is one run in every own buffer that has to do with it; between tensors nobody has
// anything to do.
int64_t NodeMover::OneRun(const Where& where, int64_t size_bytes, bool& is_padding) const {
  const NodeOperation& operation = where.operation;
  auto cut = [&](int64_t at, const auto& whole, const auto& parts) {
    const auto run = RunAt(whole, absl::MakeConstSpan(parts), at);
    is_padding = is_padding || run.data == nullptr;
    size_bytes = std::min(size_bytes, run.size_bytes);
  };
  if (!args_.input_parts.empty() && operation.combines)
    cut(operation.from_bytes + where.begin, args_.input, args_.input_parts);
  if (!args_.output_parts.empty())
    cut(operation.to_bytes + where.begin, args_.output, args_.output_parts);
  return size_bytes;
}

const std::byte* NodeMover::SourceOf(const Where& where, int32_t member) const {
  const NodeOperation& operation = where.operation;
  const NodePost& post = posts_[static_cast<size_t>(member)];
  const std::byte* const memory = lane_.memory(member).data();
  const int64_t from = operation.from_bytes + where.begin;
  const int64_t staged = operation.staged_bytes + where.begin;
  if (operation.exchange == NodeExchange::kEnds) return HomeOf(operation, where.begin);
  if (operation.from_result) {
    if (post.Has(NodePost::kOutputMapped)) return OutputOf(member, from);
    return memory + post.staging + MadeAt(where.step - 1) + staged;
  }
  if (member == lane_.self()) return OwnInput(from);
  if (post.Has(NodePost::kInputMapped)) return memory + post.input + from;
  return memory + post.staging + ShownAt(*collective_, *mode_, where.step) + staged;
}

void NodeMover::FindSources(const Where& where) {
  sources_.clear();
  if (!where.operation.combines) return sources_.push_back(SourceOf(where, where.operation.from));
  for (int32_t m = 0; m < lane_.size(); ++m) sources_.push_back(SourceOf(where, m));
}

void NodeMover::FindTargets(const Where& where) {
  const NodeOperation& operation = where.operation;
  const int32_t root = collective_->root;
  const int64_t to = operation.to_bytes + where.begin;
  targets_.clear();
  switch (operation.target) {
    case NodeTarget::kOwnOutput:
      targets_.push_back(OwnOutput(to));
      break;
    case NodeTarget::kOwnResult: {
      if (!args_.output.empty()) targets_.push_back(OwnOutput(to));
      const bool fetched = args_.kind != CollectiveKind::kReduce || lane_.self() != root;
      if (fetched && !posts_[static_cast<size_t>(lane_.self())].Has(NodePost::kOutputMapped)) {
        targets_.push_back(staging_.data() + MadeAt(where.step) + operation.staged_bytes +
                           where.begin);
      }
      break;
    }
    case NodeTarget::kRootOutput:
      targets_.push_back(OutputOf(root, to));
      break;
    case NodeTarget::kPartial:
      targets_.push_back(exchange_->Partial(operation.piece).data() + to);
      break;
    case NodeTarget::kSlice:
      targets_.push_back(HomeOf(operation, where.begin));
      break;
    case NodeTarget::kNowhere:
      break;
    case NodeTarget::kEveryOutput:
    case NodeTarget::kOthersOutput:
      for (int32_t i = 0; i < lane_.size(); ++i) {
        const int32_t member = (lane_.self() + i) % lane_.size();
        if (operation.target == NodeTarget::kOthersOutput && member == root) continue;
        targets_.push_back(OutputOf(member, to));
      }
      break;
  }
}

// What is combined in place: a target is a source.
bool NodeMover::ReplacesOperand() const {
  return std::any_of(targets_.begin(), targets_.end(), [this](const std::byte* target) {
    return std::find(sources_.begin(), sources_.end(), target) != sources_.end();
  });
}

// Below, a tile that is copied is still in the first-level cache, and leaves for the other core at
// its pace.
bool NodeMover::CombinesTwice(const NodeOperation& operation) const {
  constexpr int64_t kTwiceBytesMin = int64_t{128} << 10;
  if (!operation.combines || sources_.size() != 2 || targets_.size() != 2) return false;
  if (scales_ || passes_by_) return false;
  return (mode_->shared && ReplacesOperand()) || operation.size_bytes >= kTwiceBytesMin;
}

int64_t NodeMover::Perform(const NodeOperation& operation, int64_t step, int64_t begin,
                           int64_t size_bytes) {
  const Where where{operation, step, begin};
  bool is_padding = false;
  size_bytes = OneRun(where, size_bytes, is_padding);
  if (is_padding) return size_bytes;
  FindTargets(where);
  const bool ends = operation.exchange == NodeExchange::kEnds;
  // Of a reduce for another node nothing comes back.
  if (ends && targets_.empty() && SliceHome(*collective_, *mode_) == NodeTarget::kSlice)
    return size_bytes;
  FindSources(where);
  // What other nodes are sent stays in the caches, and is scaled when it is back.
  const bool is_sent =
      operation.exchange == NodeExchange::kBegins || operation.target == NodeTarget::kPartial;
  scales_ = scale_ != 1.0 && (ends || (operation.combines && exchange_ == nullptr));
  passes_by_ = streams_ && !is_sent && !ReplacesOperand();
  if (CombinesTwice(operation)) {
    ReduceTwice(args_.dtype, args_.op, targets_[0], targets_[1], sources_[0], sources_[1],
                size_bytes / coordd::SizeOf(args_.dtype));
    return size_bytes;
  }
  const bool one_plain = targets_.size() == 1 && !passes_by_ && !scales_;
  const int64_t tile_bytes = one_plain                    ? size_bytes
                             : operation.combines || ends ? kTileBytes
                                                          : kCopyTileBytes;
  std::byte* const own = ends ? HomeOf(operation, begin) : nullptr;
  for (int64_t at = 0; at < size_bytes; at += tile_bytes) {
    const int64_t size = std::min(tile_bytes, size_bytes - at);
    if (operation.combines) {
      Combine(at, size);
    } else {
      if (scales_) Scale(args_.dtype, scale_, own + at, size / coordd::SizeOf(args_.dtype));
      CopyOut(sources_.front() + at, at, size);
    }
  }
  if (passes_by_) StreamFence();
  return size_bytes;
}

void NodeMover::Combine(int64_t begin, int64_t size_bytes) {
  absl::InlinedVector<const std::byte*, 8> sources;
  for (const std::byte* source : sources_) sources.push_back(source + begin);
  alignas(64) std::byte tile[kTileBytes];
  std::byte* const made = passes_by_ ? tile : targets_.front() + begin;
  Make(made, sources, size_bytes);
  CopyOut(made, begin, size_bytes);
}

void NodeMover::Make(std::byte* result, absl::Span<const std::byte* const> sources,
                     int64_t size_bytes) {
  const int64_t count = size_bytes / coordd::SizeOf(args_.dtype);
  ReduceAll(args_.dtype, args_.op, result, sources, count);
  if (scales_) Scale(args_.dtype, scale_, result, count);
}

void NodeMover::CopyOut(const std::byte* from, int64_t begin, int64_t size_bytes) {
  for (std::byte* target : targets_) {
    std::byte* const to = target + begin;
    if (to == from) continue;
    if (passes_by_) {
      StreamBytes(to, from, size_bytes);
    } else {
      CopyBytes(to, from, size_bytes);
    }
  }
}

}  // namespace coordd
