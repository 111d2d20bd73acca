#include "server/model/process_exit.h"

#include <string.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/one_line.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// Statuses of a shell: 128 + the signal that killed what it ran.
constexpr int kShellSignal = 128;
constexpr int kMaxSignal = 64;
constexpr int kMaxLastWords = 5;

std::string SignalText(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

std::string EndText(const v1::ProcessExit& exit) {
  if (exit.unreachable()) return "the connection to its host ended";
  if (exit.signal() != 0) return absl::StrCat("it was killed by ", SignalText(exit.signal()));
  const int signal = exit.code() - kShellSignal;
  const char* name = signal > 0 && signal <= kMaxSignal ? sigabbrev_np(signal) : nullptr;
  return absl::StrCat("it exited with status ", exit.code(),
                      name == nullptr ? "" : absl::StrCat(" (128 + SIG", name, ")"));
}

absl::Status CheckText(absl::string_view field, absl::string_view text, int64_t most) {
  if (static_cast<int64_t>(text.size()) <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", text.size(), " bytes, expected at most ", most));
}

absl::Status CheckExit(const v1::LaunchedExit& exit) {
  if (exit.launch().empty())
    return absl::InvalidArgumentError("exits.launch: nothing, expected what Join.launch said");
  COORDD_RETURN_IF_ERROR(CheckText("exits.launch", exit.launch(), kMaxLaunchBytes));
  COORDD_RETURN_IF_ERROR(CheckText("exits.hostname", exit.hostname(), kMaxHostnameBytes));
  COORDD_RETURN_IF_ERROR(CheckText("exits.reason", exit.exit().reason(), kMaxLastWordBytes));
  if (exit.exit().signal() < 0 || exit.exit().signal() > kMaxSignal) {
    return absl::InvalidArgumentError(
        absl::StrCat("exits.signal: ", exit.exit().signal(), ", expected 0 to ", kMaxSignal));
  }
  if (exit.exit().last_words_size() > kMaxLastWords) {
    return absl::InvalidArgumentError(
        absl::StrCat("exits.last_words: ", exit.exit().last_words_size(),
                     " lines, expected at most ", kMaxLastWords));
  }
  for (const std::string& line : exit.exit().last_words())
    COORDD_RETURN_IF_ERROR(CheckText("exits.last_words", line, kMaxLastWordBytes));
  return absl::OkStatus();
}

}  // namespace

std::string ExitText(const v1::ProcessExit& exit) {
  std::string text = EndText(exit);
  if (!exit.reason().empty()) absl::StrAppend(&text, " (", exit.reason(), ")");
  if (!exit.last_words().empty())
    absl::StrAppend(&text, "; last on stderr: ", absl::StrJoin(exit.last_words(), " | "));
  return OneLine(text);
}

std::string LossText(const v1::ProcessExit& exit) {
  return absl::StrCat("was lost: ", ExitText(exit), EndedWell(exit) ? " without a goodbye" : "");
}

bool EndedWell(const v1::ProcessExit& exit) {
  return exit.signal() == 0 && exit.code() == 0 && !exit.unreachable();
}

absl::Status ValidateExits(const v1::ReportExitsRequest& request) {
  if (request.exits_size() > kMaxExits) {
    return absl::InvalidArgumentError(
        absl::StrCat("exits: ", request.exits_size(), ", expected at most ", kMaxExits));
  }
  COORDD_RETURN_IF_ERROR(CheckText("token", request.token(), kMaxTokenBytes));
  for (const v1::LaunchedExit& exit : request.exits()) COORDD_RETURN_IF_ERROR(CheckExit(exit));
  return absl::OkStatus();
}

}  // namespace coordd
