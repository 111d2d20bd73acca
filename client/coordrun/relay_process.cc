#include "client/coordrun/relay_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/coordrun/coordinator_process.h"
#include "client/coordrun/unique_fd.h"
#include "common/status_macros.h"

namespace coordd {
namespace {

constexpr absl::Duration kStartsWithin = absl::Seconds(10);

}  // namespace

bool WantsRelay(const RunOptions& options, int32_t np, int32_t local) {
  // Whoever has several addresses of coordd goes from one to the next by itself.
  if (local < 2 || absl::StrContains(options.coordinator, ',')) return false;
  return options.node_sessions == "on" || (options.node_sessions == "auto" && np >= kRelaysFrom);
}

absl::StatusOr<RelayProcess> StartRelay(const std::string& directory,
                                        const Environment& environment, Clock& clock) {
  const std::string address = absl::StrCat("unix:", directory, "/relay");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::UnavailableError(absl::StrCat("a pipe cannot be made: ", std::strerror(errno)));
  UniqueFd ready(ends[0]), theirs(ends[1]);
  const std::filesystem::path coordd = CoordinatorProgram();
  const ChildRequest request = {
      .command = {(coordd.parent_path() / "coordd-relay").string(), "--listen", address,
                  "--ready-fd", absl::StrCat(theirs.get())},
      .environment = environment,
      .inherited_fd = theirs.get()};
  COORDD_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(request));
  theirs.Close();
  const absl::Time deadline = clock.Now() + kStartsWithin;
  char said = 0;
  for (absl::Duration left = kStartsWithin; left > absl::ZeroDuration();
       left = deadline - clock.Now()) {
    pollfd waiting = {.fd = ready.get(), .events = POLLIN, .revents = 0};
    const int n = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (n > 0 && read(ready.get(), &said, 1) == 1) return RelayProcess{std::move(process), address};
    if (n > 0) break;  // it has ended
  }
  process.Signal(SIGKILL);
  pollfd ended = {.fd = process.pidfd(), .events = POLLIN, .revents = 0};
  poll(&ended, 1, 1000);
  process.Reap();
  return absl::UnavailableError(absl::StrCat("the relay at ", address, " did not start"));
}

}  // namespace coordd
