#include "server/service/event_lines.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "server/model/event_log.h"

namespace coordd {
void EventLines::Write(const Event& event, absl::Time now) {
  if (event.text.empty()) return;
  const std::string where =
      event.job.empty() ? std::string() : absl::StrCat("job ", event.job, ": ");
  if (event.kind == Event::Kind::kTensorsPlanned) {
    COORDD_LOG(kDebug, where, event.text);
    return;
  }
  std::string more;
  if (StrangersCause(event.kind)) {
    std::optional<std::string> passes = limits_[event.kind].Pass(now);
    if (!passes.has_value()) return;
    more = *std::move(passes);
  }
  // Who was refused, and from where: what his messages say of him proves nothing.
  if (event.kind == Event::Kind::kJoinRefused && event.caller != nullptr)
    absl::StrAppend(&more, " (", CallerText(*event.caller), ")");
  if (IsWarning(event)) {
    COORDD_LOG(kWarning, where, event.text, more);
  } else {
    COORDD_LOG(kInfo, where, event.text, more);
  }
}

}  // namespace coordd
