#include "common/protocol/process_set_parts.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

constexpr int64_t kFramingBytes = 16;

absl::Status CheckCounts(const v1::ProcessSets& sets) {
  int64_t members = 0;
  for (const v1::ProcessSet& set : sets.sets()) members += set.ranks_size();
  if (sets.sets_size() <= kMaxProcessSets && members <= kMaxProcessSetMembers)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(sets.sets_size(), " process sets of ", members,
                                                 " ranks in all, expected at most ",
                                                 kMaxProcessSets, " of ", kMaxProcessSetMembers));
}

}  // namespace

int64_t PartBytes(const v1::ProcessSet& set) {
  return static_cast<int64_t>(set.ByteSizeLong()) + kFramingBytes;
}

std::vector<v1::ProcessSets> InParts(const v1::ProcessSets& sets, int64_t bytes) {
  std::vector<v1::ProcessSets> parts(1);
  int64_t used = 0;
  for (const v1::ProcessSet& set : sets.sets()) {
    const int64_t more = PartBytes(set);
    if (used > 0 && used + more > bytes) {
      parts.back().set_more(true);
      parts.emplace_back();
      used = 0;
    }
    used += more;
    *parts.back().add_sets() = set;
  }
  for (v1::ProcessSets& part : parts) {
    part.set_last_process_set(sets.last_process_set());
    part.set_position(sets.position());
  }
  return parts;
}

absl::Status AddPart(const v1::ProcessSets& part, v1::ProcessSets& whole) {
  whole.MergeFrom(part);
  whole.set_more(part.more());
  return CheckCounts(whole);
}

absl::Status CheckProcessSets(const v1::ProcessSets& sets, int32_t size, int32_t checked) {
  int32_t last = checked > 0 ? sets.sets(checked - 1).process_set() : 0;
  for (int32_t i = checked; i < sets.sets_size(); ++i) {
    const v1::ProcessSet& set = sets.sets(i);
    bool valid = last < set.process_set() && set.process_set() <= sets.last_process_set() &&
                 !set.ranks().empty();
    int32_t previous = -1;
    for (int32_t rank : set.ranks()) {
      valid = valid && previous < rank && rank < size;
      previous = rank;
    }
    if (!valid) {
      return absl::InvalidArgumentError(absl::StrCat(
          "process set ", set.process_set(), " of ", set.ranks_size(), " ranks behind set ", last,
          ", expected growing numbers up to ", sets.last_process_set(),
          ", and one or more strictly increasing ranks of ", size));
    }
    last = set.process_set();
  }
  COORDD_RETURN_IF_ERROR(CheckCounts(sets));
  if (0 <= sets.last_process_set() && sets.last_process_set() < kProcessSetNumbers)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("last process set ", sets.last_process_set(),
                                                 ", expected 0 to ", kProcessSetNumbers - 1));
}

}  // namespace coordd
