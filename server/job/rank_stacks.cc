#include "server/job/rank_stacks.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/one_line.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/gpu_report.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// The frames of the first thread, innermost first: lines that are indented.
std::vector<absl::string_view> FramesOf(absl::string_view stack) {
  std::vector<absl::string_view> frames;
  for (absl::string_view line : absl::StrSplit(stack, '\n')) {
    const bool is_frame = line != absl::StripLeadingAsciiWhitespace(line);
    if (!is_frame && !frames.empty()) break;
    if (is_frame) frames.push_back(absl::StripAsciiWhitespace(line));
  }
  return frames;
}

// Whether it is in what was installed, as the paths of Python's files tell.
bool IsInstalled(absl::string_view frame) {
  for (absl::string_view part :
       {"/site-packages/", "/dist-packages/", "/lib/python3", "/python/coordd/", "\"<frozen "})
    if (absl::StrContains(frame, part)) return true;
  return false;
}

// The innermost frames, one after the other; first of all the program's own, if it is further out:
// a framework has dozens between it and a call that waits.
std::string WhereaboutsIn(absl::string_view stack) {
  constexpr size_t kFrames = 3;
  std::vector<absl::string_view> frames = FramesOf(stack);
  const auto own = std::find_if_not(frames.begin(), frames.end(), IsInstalled);
  const bool is_far_out = own != frames.end() && own - frames.begin() >= ptrdiff_t{kFrames};
  const std::string begin = is_far_out ? absl::StrCat(*own, ", in ") : "";
  frames.resize(std::min(frames.size(), kFrames));
  return absl::StrCat(begin, absl::StrJoin(frames, ", called at "));
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
  std::string where = OneLine(Truncated(WhereaboutsIn(stack), kMaxReasonBytes / 2));
  if (where.empty()) return where;
  absl::StrAppend(&where, GpuReport(member.gpu_health));
  state.SetWhereabouts(member.place.rank, where);
  return where;
}

}  // namespace coordd
