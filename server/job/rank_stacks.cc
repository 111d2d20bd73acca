#include "server/job/rank_stacks.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/gpu_report.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// The innermost frames of the first thread, one after the other: lines that are indented.
std::string InnermostFrames(absl::string_view stack) {
  constexpr size_t kFrames = 3;
  std::vector<absl::string_view> frames;
  for (absl::string_view line : absl::StrSplit(stack, '\n')) {
    const bool is_frame = line != absl::StripLeadingAsciiWhitespace(line);
    if (frames.size() == kFrames || (!is_frame && !frames.empty())) break;
    if (is_frame) frames.push_back(absl::StripAsciiWhitespace(line));
  }
  return absl::StrJoin(frames, ", called at ");
}

}  // namespace

bool WantsStack(JobWorker& member, GenerationState& state, absl::Time now) {
  if (state.IsAwaited(member.place.rank, now)) return !std::exchange(member.stack_asked, true);
  if (member.stack_asked) state.SetWhereabouts(member.place.rank, "");
  member.stack_asked = false;
  member.stack.clear();
  return false;
}

std::string NoteStack(JobWorker& member, const std::string& stack, GenerationState& state) {
  if (stack.empty() || !member.stack_asked) return "";
  member.stack = stack;
  std::string where = OneLine(Truncated(InnermostFrames(stack), kMaxReasonBytes / 2));
  if (where.empty()) return where;
  absl::StrAppend(&where, GpuReport(member.gpu_health));
  state.SetWhereabouts(member.place.rank, where);
  return where;
}

}  // namespace coordd
