#include "worker/interfaces/collective_args.h"

#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/tensor_spec.h"

namespace coordd {
namespace {

absl::Status Invalid(const CollectiveArgs& args, absl::string_view what, int64_t found,
                     absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(Name(args.kind), ": ", what, " is ", found, ", expected ", expected));
}

absl::Status CheckSize(const CollectiveArgs& args, absl::string_view what, size_t found,
                       int64_t expected) {
  if (static_cast<int64_t>(found) == expected) return absl::OkStatus();
  return Invalid(args, absl::StrCat("size of ", what), static_cast<int64_t>(found),
                 absl::StrCat(expected));
}

// One block per rank, whole elements, filling `buffer_bytes`.
absl::Status CheckBlocks(const CollectiveArgs& args, absl::string_view what,
                         const std::vector<int64_t>& blocks, size_t buffer_bytes,
                         int32_t world_size) {
  COORDD_RETURN_IF_ERROR(
      CheckSize(args, absl::StrCat("the list of ", what, " blocks"), blocks.size(), world_size));
  int64_t left = static_cast<int64_t>(buffer_bytes);
  for (int64_t block_bytes : blocks) {
    if (block_bytes < 0 || block_bytes > left || block_bytes % SizeOf(args.dtype) != 0) {
      return Invalid(args, absl::StrCat("a block of ", what), block_bytes,
                     absl::StrCat("whole elements of ", SizeOf(args.dtype),
                                  " bytes within the buffer of ", buffer_bytes));
    }
    left -= block_bytes;
  }
  if (left == 0) return absl::OkStatus();
  return Invalid(args, absl::StrCat("what the blocks of ", what, " leave over"), left, "0");
}

bool Overlaps(absl::Span<const std::byte> a, absl::Span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

// `in_place`: the smaller buffer is at its own place in the larger one.
absl::Status CheckOverlap(const CollectiveArgs& args, bool in_place) {
  // Where parts are nobody has looked.
  if (!args.input_parts.empty() || !args.output_parts.empty()) return absl::OkStatus();
  if (in_place || !Overlaps(args.input, args.output)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Name(args.kind), ": input and output overlap, expected the same place or none"));
}

const std::byte* BlockStart(const std::byte* buffer, const std::vector<int64_t>& blocks,
                            Rank rank) {
  for (int32_t r = 0; r < ToInt(rank); ++r) buffer += blocks[static_cast<size_t>(r)];
  return buffer;
}

}  // namespace

absl::Status ValidateArgs(const CollectiveArgs& args, Rank self, int32_t world_size) {
  if (Reduces(args.kind) && (args.op == ReduceOp::kNone || args.op == ReduceOp::kAverage)) {
    return absl::InvalidArgumentError(absl::StrCat(Name(args.kind), ": op is ", Name(args.op),
                                                   ", expected sum, min, max or product"));
  }
  if (HasRoot(args.kind) && (ToInt(args.root) < 0 || ToInt(args.root) >= world_size))
    return Invalid(args, "root", ToInt(args.root), absl::StrCat("0 to ", world_size - 1));
  const size_t own = static_cast<size_t>(ToInt(self));
  switch (args.kind) {
    case CollectiveKind::kAllreduce:
      COORDD_RETURN_IF_ERROR(
          CheckSize(args, "output", args.output.size(), static_cast<int64_t>(args.input.size())));
      if (static_cast<int64_t>(args.input.size()) % SizeOf(args.dtype) != 0) {
        return Invalid(args, "size of input", static_cast<int64_t>(args.input.size()),
                       absl::StrCat("whole elements of ", SizeOf(args.dtype), " bytes"));
      }
      return CheckOverlap(args, args.input.data() == args.output.data());
    case CollectiveKind::kBroadcast:
      return CheckSize(args, "input", args.input.size(), 0);
    case CollectiveKind::kReduce:
      if (static_cast<int64_t>(args.input.size()) % SizeOf(args.dtype) != 0) {
        return Invalid(args, "size of input", static_cast<int64_t>(args.input.size()),
                       absl::StrCat("whole elements of ", SizeOf(args.dtype), " bytes"));
      }
      COORDD_RETURN_IF_ERROR(
          CheckSize(args, "output", args.output.size(),
                    args.root == self ? static_cast<int64_t>(args.input.size()) : 0));
      return CheckOverlap(args, args.input.data() == args.output.data());
    case CollectiveKind::kGather:
      if (args.root != self) {
        COORDD_RETURN_IF_ERROR(
            CheckSize(args, "the list of output blocks", args.output_block_bytes.size(), 0));
        return CheckSize(args, "output", args.output.size(), 0);
      }
      [[fallthrough]];  // on its root it is an allgather
    case CollectiveKind::kAllgather:
      COORDD_RETURN_IF_ERROR(
          CheckBlocks(args, "output", args.output_block_bytes, args.output.size(), world_size));
      COORDD_RETURN_IF_ERROR(
          CheckSize(args, "input", args.input.size(), args.output_block_bytes[own]));
      return CheckOverlap(
          args, args.input.data() == BlockStart(args.output.data(), args.output_block_bytes, self));
    case CollectiveKind::kReducescatter:
      COORDD_RETURN_IF_ERROR(
          CheckBlocks(args, "input", args.input_block_bytes, args.input.size(), world_size));
      COORDD_RETURN_IF_ERROR(
          CheckSize(args, "output", args.output.size(), args.input_block_bytes[own]));
      return CheckOverlap(
          args, args.output.data() == BlockStart(args.input.data(), args.input_block_bytes, self));
    case CollectiveKind::kAlltoall:
      COORDD_RETURN_IF_ERROR(
          CheckBlocks(args, "input", args.input_block_bytes, args.input.size(), world_size));
      COORDD_RETURN_IF_ERROR(
          CheckBlocks(args, "output", args.output_block_bytes, args.output.size(), world_size));
      if (args.input_block_bytes[own] != args.output_block_bytes[own]) {
        return Invalid(args, "the output block from the rank itself", args.output_block_bytes[own],
                       absl::StrCat(args.input_block_bytes[own]));
      }
      return CheckOverlap(args, /*in_place=*/false);
    case CollectiveKind::kBarrier:
      COORDD_RETURN_IF_ERROR(CheckSize(args, "input", args.input.size(), 0));
      return CheckSize(args, "output", args.output.size(), 0);
    case CollectiveKind::kJoin:
    case CollectiveKind::kSend:
    case CollectiveKind::kReceive:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("collective kind ", static_cast<int>(args.kind), " is not the backend's"));
}

absl::Status ValidateGroup(ProcessSetId group, absl::Span<const Rank> ranks, Rank self,
                           int32_t world_size) {
  auto invalid = [group](absl::string_view found) {
    return absl::InvalidArgumentError(
        absl::StrCat("group ", ToInt(group), ": ", found,
                     ", expected strictly increasing ranks of the job, this rank among them"));
  };
  bool has_self = false;
  int32_t last = -1;
  for (Rank rank : ranks) {
    if (ToInt(rank) <= last || ToInt(rank) >= world_size)
      return invalid(absl::StrCat("rank ", ToInt(rank), " after ", last));
    last = ToInt(rank);
    has_self = has_self || rank == self;
  }
  if (!has_self) return invalid(absl::StrCat("rank ", ToInt(self), " is not a member"));
  if (ToInt(group) == 0) return invalid("a definition of the group of all ranks");
  return absl::OkStatus();
}

absl::Span<const std::byte> NodeInputOf(const CollectiveArgs& args) {
  return args.kind == CollectiveKind::kBroadcast ? args.output : args.input;
}

double NodeScaleOf(const CollectiveArgs& args) {
  if (args.scaled == nullptr) return 1.0;
  *args.scaled = Reduces(args.kind);
  return *args.scaled ? args.scale : 1.0;
}

}  // namespace coordd
