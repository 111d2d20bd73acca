#include "common/protocol/tensor_spec.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

absl::Status Invalid(const TensorSpec& spec, absl::string_view found, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", spec.name, ": ", found, ", expected ", expected));
}

absl::Status ValidateShape(const TensorSpec& spec) {
  if (static_cast<int64_t>(spec.shape.size()) > kMaxDimensions) {
    return Invalid(spec, absl::StrCat(spec.shape.size(), " dimensions"),
                   absl::StrCat("at most ", kMaxDimensions));
  }
  if (spec.shape.empty() && HasRows(spec.kind)) {
    return Invalid(spec, absl::StrCat(Name(spec.kind), " of a scalar"), "at least one dimension");
  }
  int64_t bytes = SizeOf(spec.dtype);
  for (int64_t extent : spec.shape) {
    if (extent < 0)
      return Invalid(spec, absl::StrCat("shape ", ShapeString(spec.shape)), "no negative extent");
    // Dividing instead of multiplying cannot overflow.
    if (extent > 0 && bytes > kMaxTensorBytes / extent) {
      return Invalid(spec, absl::StrCat("shape ", ShapeString(spec.shape)),
                     absl::StrCat("at most ", kMaxTensorBytes, " bytes"));
    }
    bytes *= extent > 0 ? extent : 1;
  }
  return absl::OkStatus();
}

absl::Status ValidateReduction(const TensorSpec& spec) {
  const bool scales = spec.prescale_factor != 1.0 || spec.postscale_factor != 1.0;
  if (!Reduces(spec.kind)) {
    if (spec.op != ReduceOp::kNone)
      return Invalid(spec, absl::StrCat(Name(spec.kind), " with op ", Name(spec.op)), "no op");
    if (scales) return Invalid(spec, absl::StrCat(Name(spec.kind), " with a scale factor"), "none");
    return absl::OkStatus();
  }
  if (spec.op == ReduceOp::kNone)
    return Invalid(spec, absl::StrCat(Name(spec.kind), " without op"),
                   "sum, average, min, max or product");
  if (spec.dtype == DataType::kBool && (scales || spec.op == ReduceOp::kAverage)) {
    return Invalid(spec, "bool with average or a scale factor",
                   "sum, min, max or product of bool, or a numeric dtype");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t NumElements(absl::Span<const int64_t> shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

int64_t SizeBytes(const TensorSpec& spec) { return NumElements(spec.shape) * SizeOf(spec.dtype); }

std::string ShapeString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::string ToString(const TensorSpec& spec) {
  if (!spec.refused.empty()) return absl::StrCat("a call that was refused: ", spec.refused);
  std::string text = std::string(Name(spec.kind));
  if (!HasPayload(spec.kind)) return text;
  absl::StrAppend(&text, " ", Name(spec.dtype), " ", ShapeString(spec.shape));
  if (spec.op != ReduceOp::kNone) absl::StrAppend(&text, " ", Name(spec.op));
  if (HasRoot(spec.kind)) {
    const bool from = spec.kind == CollectiveKind::kBroadcast;
    absl::StrAppend(&text, from ? " from" : " to", " rank ", spec.root_rank);
  }
  if (IsPairwise(spec.kind)) {
    const bool from = spec.kind == CollectiveKind::kReceive;
    absl::StrAppend(&text, from ? " from" : " to", " rank ", spec.peer_rank);
  }
  return text;
}

absl::Status Validate(const TensorSpec& spec, int32_t world_size) {
  if (spec.name.empty() || static_cast<int64_t>(spec.name.size()) > kMaxTensorNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("tensor name of ", spec.name.size(),
                                                   " bytes, expected 1 to ", kMaxTensorNameBytes,
                                                   "; shorten a longer one by a hash of it"));
  }
  COORDD_RETURN_IF_ERROR(ValidateShape(spec));
  COORDD_RETURN_IF_ERROR(ValidateReduction(spec));
  auto is_rank = [world_size](int32_t rank) { return rank >= 0 && rank < world_size; };
  if (HasRoot(spec.kind) && !is_rank(spec.root_rank)) {
    return Invalid(spec, absl::StrCat("root rank ", spec.root_rank),
                   absl::StrCat("0 to ", world_size - 1));
  }
  if (IsPairwise(spec.kind) && !is_rank(spec.peer_rank)) {
    return Invalid(spec, absl::StrCat(Name(spec.kind), " with peer rank ", spec.peer_rank),
                   absl::StrCat("0 to ", world_size - 1));
  }
  if ((spec.kind == CollectiveKind::kJoin || IsPairwise(spec.kind)) &&
      (ToInt(spec.process_set) != 0 || !spec.group.empty())) {
    return Invalid(spec, absl::StrCat(Name(spec.kind), " in a process set or a group"),
                   "process set 0 and no group");
  }
  if (!spec.refused.empty() && (spec.kind != CollectiveKind::kBarrier ||
                                static_cast<int64_t>(spec.refused.size()) > kMaxRefusalBytes)) {
    return Invalid(spec,
                   absl::StrCat("a refused ", Name(spec.kind), " with a reason of ",
                                spec.refused.size(), " bytes"),
                   absl::StrCat("a barrier with at most ", kMaxRefusalBytes));
  }
  const bool grouped = !spec.group.empty();
  if (static_cast<int64_t>(spec.group.size()) > kMaxTensorNameBytes ||
      (grouped && (spec.group_size < 1 || spec.group_size > kMaxGroupSize))) {
    return Invalid(spec, absl::StrCat("group of ", spec.group_size),
                   absl::StrCat("1 to ", kMaxGroupSize, " tensors"));
  }
  return absl::OkStatus();
}

absl::Status CheckSame(const TensorSpec& first, Rank first_rank, const TensorSpec& second,
                       Rank second_rank) {
  auto differ = [&](absl::string_view what, const auto& a, const auto& b) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", first.name, ": rank ",
                                                   ToInt(second_rank), " has ", what, " ", b,
                                                   ", rank ", ToInt(first_rank), " has ", a));
  };
  const bool pairwise = IsPairwise(first.kind) && IsPairwise(second.kind);
  if (pairwise ? first.kind == second.kind : first.kind != second.kind)
    return differ("kind", Name(first.kind), Name(second.kind));
  if (pairwise && first.peer_rank != ToInt(second_rank))
    return differ("peer", first.peer_rank, second.peer_rank);
  if (pairwise && second.peer_rank != ToInt(first_rank))
    return differ("peer", first.peer_rank, second.peer_rank);
  if (first.process_set != second.process_set)
    return differ("process set", ToInt(first.process_set), ToInt(second.process_set));
  if (first.dtype != second.dtype) return differ("dtype", Name(first.dtype), Name(second.dtype));
  if (first.op != second.op) return differ("op", Name(first.op), Name(second.op));
  if (first.root_rank != second.root_rank)
    return differ("root rank", first.root_rank, second.root_rank);
  if (first.prescale_factor != second.prescale_factor)
    return differ("prescale factor", first.prescale_factor, second.prescale_factor);
  if (first.postscale_factor != second.postscale_factor)
    return differ("postscale factor", first.postscale_factor, second.postscale_factor);
  if (first.memory != second.memory)
    return differ("memory", Name(first.memory), Name(second.memory));
  if (first.group != second.group) {
    auto name = [](const TensorSpec& spec) { return spec.group.empty() ? "none" : spec.group; };
    return differ("group", name(first), name(second));
  }
  if (first.group_size != second.group_size)
    return differ("group size", first.group_size, second.group_size);
  const size_t skip = FirstDimensionMayDiffer(first.kind) ? 1 : 0;
  bool same_shape = first.shape.size() == second.shape.size();
  for (size_t i = skip; same_shape && i < first.shape.size(); ++i)
    same_shape = first.shape[i] == second.shape[i];
  if (!same_shape) return differ("shape", ShapeString(first.shape), ShapeString(second.shape));
  return absl::OkStatus();
}

bool FusesWith(const TensorSpec& a, const TensorSpec& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.root_rank == b.root_rank &&
         a.prescale_factor == b.prescale_factor && a.postscale_factor == b.postscale_factor &&
         a.memory == b.memory && a.process_set == b.process_set && CanFuse(a.kind);
}

bool SameCall(const TensorSpec& a, const TensorSpec& b) {
  if (!FirstDimensionMayDiffer(a.kind) || a.shape.empty() || a.shape.size() != b.shape.size())
    return a == b;
  TensorSpec same_rows = b;
  same_rows.shape[0] = a.shape[0];
  return a == same_rows;
}

}  // namespace coordd
