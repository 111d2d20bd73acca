#include "client/coordrun/process/process_end.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace coordd {

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? absl::StrCat("SIG", name) : absl::StrCat("signal ", signal);
}

std::string ProcessEnd::ToString() const {
  if (unreached) return "was not started, since its host is not reached";
  if (lost) return "was lost with the connection to its host";
  return signal != 0 ? absl::StrCat("was killed by ", SignalName(signal))
                     : absl::StrCat("exited with status ", code);
}

}  // namespace coordd
