#include "worker/node/node_call.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/protocol/types.h"
#include "worker/interfaces/collective_args.h"

namespace coordd {
namespace {

// From the lowest bit on: elements, root, operator, dtype, kind.
constexpr int kRootAt = 32, kOpAt = 52, kDtypeAt = 56, kKindAt = 60;
constexpr uint64_t kElementsMask = (uint64_t{1} << kRootAt) - 1, kRootMask = 0xfffff,
                   kSmallMask = 0xf, kHasSplits = uint64_t{1} << kRootAt;
static_assert(static_cast<uint64_t>(kLastCollectiveKind) <= kSmallMask &&
              static_cast<uint64_t>(kLastDataType) <= kSmallMask);

bool Reduces(CollectiveKind kind) {
  return kind == CollectiveKind::kAllreduce || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kReducescatter;
}

bool HasRoot(CollectiveKind kind) {
  return kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReduce ||
         kind == CollectiveKind::kGather;
}

// Of what all members know alike.
int64_t BytesOf(const CollectiveArgs& args) {
  switch (args.kind) {
    case CollectiveKind::kAllgather:
      return static_cast<int64_t>(args.output.size());
    case CollectiveKind::kAlltoall:
      return args.equal_blocks ? static_cast<int64_t>(args.input.size()) : 0;
    case CollectiveKind::kGather:
      return 0;
    default:
      return static_cast<int64_t>(NodeInputOf(args).size());
  }
}

std::string Described(uint64_t word) {
  const auto kind = static_cast<CollectiveKind>(word >> kKindAt);
  std::string text = std::string(Name(kind));
  if (kind == CollectiveKind::kBarrier) return text;
  const uint64_t elements = word & kElementsMask;
  if (Reduces(kind)) {
    const auto op = static_cast<ReduceOp>((word >> kOpAt) & kSmallMask);
    const auto dtype = static_cast<DataType>((word >> kDtypeAt) & kSmallMask);
    absl::StrAppend(&text, " (", Name(op), ") of ", elements, " ", Name(dtype));
  } else if (kind == CollectiveKind::kAlltoall && (word & kHasSplits) != 0) {
    text += " with splits";
  } else if (elements > 0) {
    absl::StrAppend(&text, " of ", elements, elements == 1 ? " byte" : " bytes");
  }
  if (HasRoot(kind)) {
    absl::StrAppend(&text, kind == CollectiveKind::kBroadcast ? " from" : " to", " member ",
                    (word >> kRootAt) & kRootMask);
  }
  return text;
}

}  // namespace

uint64_t CallWord(const CollectiveArgs& args) {
  uint64_t word = static_cast<uint64_t>(args.kind) << kKindAt;
  const int64_t size_bytes = BytesOf(args);
  if (Reduces(args.kind)) {
    word |= static_cast<uint64_t>(args.op) << kOpAt | static_cast<uint64_t>(args.dtype) << kDtypeAt;
    word |= static_cast<uint64_t>(size_bytes / SizeOf(args.dtype)) & kElementsMask;
  } else {
    word |= static_cast<uint64_t>(size_bytes) & kElementsMask;
  }
  // What members send may differ, and how they tell it, too: so it is another call.
  if (args.kind == CollectiveKind::kAlltoall && !args.equal_blocks) word |= kHasSplits;
  if (HasRoot(args.kind)) word |= (static_cast<uint64_t>(ToInt(args.root)) & kRootMask) << kRootAt;
  return word;
}

absl::Status DifferentCalls(int32_t member, uint64_t its, uint64_t own) {
  return absl::FailedPreconditionError(absl::StrCat("member ", member, " of the group calls ",
                                                    Described(its), ", this one ", Described(own)));
}

}  // namespace coordd
