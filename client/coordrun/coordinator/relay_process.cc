#include "client/coordrun/coordinator/relay_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "client/coordrun/coordinator/coordinator_process.h"
#include "common/base/owned_fd.h"
#include "common/base/status_macros.h"
#include "common/base/unix_path.h"
#include "common/grpc/certs.h"

namespace coordd {
namespace {

constexpr absl::Duration kStartsWithin = absl::Seconds(10);
constexpr absl::Duration kPauseMin = absl::Seconds(1), kPauseMax = absl::Minutes(1);
constexpr absl::Duration kLivedLong = absl::Minutes(1);

// What it has written to stderr, on one line.
std::string LastWordsOf(ChildProcess& process) {
  pollfd ended = {.fd = process.pidfd(), .events = POLLIN, .revents = 0};
  poll(&ended, 1, 100);  // it writes before it ends
  char text[4096];
  const ssize_t got = read(process.err().get(), text, sizeof(text));
  const absl::string_view said(text, got > 0 ? static_cast<size_t>(got) : 0);
  const auto trimmed = absl::StripAsciiWhitespace(said);
  return trimmed.empty() ? "it said nothing" : absl::StrReplaceAll(trimmed, {{"\n", "; "}});
}

constexpr char kSocketName[] = "/relay";

// Of the relay's own certificate, where its launcher has put one beside the workers'.
std::vector<std::string> OwnCertificate(const Environment& environment) {
  const std::string worker = Variable(environment, "COORDD_TLS_CERT");
  const std::string directory =
      std::filesystem::path(worker.empty() ? "/" : worker).parent_path().string();
  const TlsFiles files = RoleTlsFiles(directory, Role::kNode);
  if (worker.empty() || !files.Validate().ok()) return {};
  return {"--tls-cert", files.cert, "--tls-key", files.key};
}

OwnedFd OpenIfLong(const std::string& directory) {
  if (directory.size() + std::strlen(kSocketName) <= kRelayPathBytesMax) return OwnedFd();
  return OwnedFd(open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

// A folder that this process has open has a short name, too, which is good for all processes of its
// user as long as it lives: longer than the relay and the workers.
std::string AddressIn(const std::string& directory, const OwnedFd& opened) {
  return absl::StrCat(
      "unix:", opened.valid() ? absl::StrCat("/proc/", getpid(), "/fd/", opened.get()) : directory,
      kSocketName);
}

}  // namespace

bool WantsRelay(const RunOptions& options, int32_t np, int32_t local) {
  // Whoever has several addresses of coordd goes from one to the next by itself.
  if (local < 2 || absl::StrContains(options.coordinator, ',')) return false;
  return options.node_sessions == "on" || (options.node_sessions == "auto" && np >= kRelaysFrom);
}

RelayProcess::RelayProcess(const std::string& directory, Environment environment)
    : directory_(OpenIfLong(directory)),
      address_(AddressIn(directory, directory_)),
      environment_(std::move(environment)) {}

absl::StatusOr<ChildProcess> RelayProcess::Begin(int ready_fd) {
  const std::filesystem::path coordd = CoordinatorProgram();
  ChildRequest request = {
      .command = {(coordd.parent_path() / "coordd-relay").string(), "--listen", address_},
      .environment = environment_};
  for (std::string& argument : OwnCertificate(environment_))
    request.command.push_back(std::move(argument));
  if (ready_fd >= 0) {
    request.command.insert(request.command.end(), {"--ready-fd", absl::StrCat(ready_fd)});
    request.inherited_fd = ready_fd;
  }
  return ChildProcess::Start(request);
}

absl::Status RelayProcess::Start(Clock& clock) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return absl::UnavailableError(absl::StrCat("a pipe cannot be made: ", std::strerror(errno)));
  OwnedFd ready(ends[0]), theirs(ends[1]);
  COORDD_ASSIGN_OR_RETURN(process_, Begin(theirs.get()));
  theirs.Close();
  began_ = clock.Now();
  const absl::Time deadline = began_ + kStartsWithin;
  char said = 0;
  absl::Duration left = kStartsWithin;
  for (; left > absl::ZeroDuration(); left = deadline - clock.Now()) {
    pollfd waiting = {.fd = ready.get(), .events = POLLIN, .revents = 0};
    const int n = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (n > 0 && read(ready.get(), &said, 1) == 1) return absl::OkStatus();
    if (n > 0) break;  // it has ended
  }
  const bool ended = left > absl::ZeroDuration();
  std::string words = LastWordsOf(*process_);
  Kill();
  return absl::UnavailableError(
      absl::StrCat("the relay at ", address_, " did not start",
                   ended ? "" : absl::StrCat(" within ", absl::FormatDuration(kStartsWithin)), ": ",
                   words, "; the workers of this node speak to coordd themselves"));
}

int RelayProcess::pidfd() const { return process_.has_value() ? process_->pidfd() : -1; }

std::string RelayProcess::Ended(absl::Time now) {
  if (!process_.has_value()) return "";
  const std::optional<ProcessEnd> end = process_->Reap();
  if (!end.has_value()) return "";
  process_.reset();
  if (now - began_ >= kLivedLong) pause_ = absl::ZeroDuration();
  pause_ = std::clamp(2 * pause_, kPauseMin, kPauseMax);
  starts_again_ = now + pause_;
  return absl::StrCat("the relay of this node ", end->ToString(),
                      "; its workers go on without it, and it is started again in ",
                      absl::FormatDuration(pause_));
}

absl::Status RelayProcess::StartAgain(absl::Time now) {
  began_ = now;
  starts_again_ = absl::InfiniteFuture();
  COORDD_ASSIGN_OR_RETURN(process_, Begin(/*ready_fd=*/-1));
  return absl::OkStatus();
}

void RelayProcess::Kill() {
  starts_again_ = absl::InfiniteFuture();
  if (!process_.has_value()) return;
  process_->Signal(SIGKILL);
  pollfd ended = {.fd = process_->pidfd(), .events = POLLIN, .revents = 0};
  poll(&ended, 1, 1000);
  process_->Reap();
  process_.reset();
}

}  // namespace coordd
