#include "client/coordctl/exit_report.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "common/base/utf8.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

constexpr size_t kMaxLines = 5;  // as coordd takes them

}  // namespace

absl::StatusOr<v1::ReportExitsRequest> ExitRequestFrom(const ExitArguments& arguments) {
  const int said = static_cast<int>(arguments.status.has_value()) +
                   static_cast<int>(arguments.signal.has_value()) +
                   static_cast<int>(arguments.unseen);
  if (said != 1) {
    return absl::InvalidArgumentError(
        "how it has ended: expected one of --status, --signal and --unseen");
  }
  v1::ReportExitsRequest request;
  request.set_job(arguments.job);
  v1::LaunchedExit& exit = *request.add_exits();
  exit.set_launch(arguments.launch);
  exit.set_hostname(ShortenedText(arguments.hostname, kMaxHostnameBytes));
  exit.set_pid(arguments.pid);
  exit.set_rank(arguments.rank);
  exit.mutable_exit()->set_code(arguments.status.value_or(0));
  exit.mutable_exit()->set_signal(arguments.signal.value_or(0));
  exit.mutable_exit()->set_unreachable(arguments.unseen);
  exit.mutable_exit()->set_reason(ShortenedText(arguments.reason, kMaxLastWordBytes));
  const size_t lines = arguments.last_words.size();
  for (size_t i = lines - std::min(lines, kMaxLines); i < lines; ++i)
    exit.mutable_exit()->add_last_words(ShortenedText(arguments.last_words[i], kMaxLastWordBytes));
  return request;
}

}  // namespace coordd
