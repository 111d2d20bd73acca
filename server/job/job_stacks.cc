// Where the programs are that others wait for: each is asked once while it is missing.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/gpu_report.h"
#include "server/job/job_state.h"
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

bool JobState::WantsStack(Worker& worker, absl::Time now) {
  if (generation_->state().IsAwaited(worker.place.rank, now))
    return !std::exchange(worker.stack_asked, true);
  if (worker.stack_asked) generation_->state().SetWhereabouts(worker.place.rank, "");
  worker.stack_asked = false;
  worker.stack.clear();
  return false;
}

void JobState::OnStack(Worker& worker, const std::string& stack, Effects& effects) {
  if (stack.empty() || !worker.stack_asked) return;
  worker.stack = stack;
  std::string where = OneLine(Truncated(InnermostFrames(stack), kMaxReasonBytes / 2));
  if (where.empty()) return;
  absl::StrAppend(&where, GpuReport(worker.heartbeat.gpu_health()));
  Emit(Event::Kind::kRankStuck, absl::StrCat(Who(worker), " is at ", where), effects);
  generation_->state().SetWhereabouts(worker.place.rank, std::move(where));
}

}  // namespace coordd
