#include "client/coordrun/coordinator/coordinator_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

constexpr size_t kMaxReadyBytes = 4096;
// Since the last worker joined. An import of torch on a busy machine is through by then.
constexpr char kElasticSettlingWindow[] = "30s";
constexpr char kGrowingSettlingWindow[] = "2s";

std::string ReadAvailable(int fd) {
  std::string text(kMaxReadyBytes, '\0');
  const ssize_t got = read(fd, text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

// Until `fd` can be read (or its writers are gone) or `deadline` passes; false then.
bool AwaitReadable(int fd, absl::Time deadline, Clock& clock) {
  while (true) {
    const absl::Duration left = deadline - clock.Now();
    if (left <= absl::ZeroDuration()) return false;
    pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
    const int n = poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

}  // namespace

std::string CoordinatorProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path beside = self.parent_path() / "coordd";
  return !error && access(beside.c_str(), X_OK) == 0 ? beside.string() : "coordd";
}

std::vector<std::string> CoordinatorCommand(const std::string& program, const RunOptions& options,
                                            const CoordinatorSetup& setup, int ready_fd) {
  std::vector<std::string> command = {program};
  const auto add = [&](const std::string& name, const std::string& value) {
    if (CoorddArgument(options, name)) return;  // that of --coordd-arg wins
    command.push_back(name);
    command.push_back(value);
  };
  add("--listen", setup.listen);
  add("--http", setup.http);
  add("--ready-fd", absl::StrCat(ready_fd));
  add("--log-level", "warning");
  add("--store", setup.store);
  const TlsFiles& tls = setup.tls;
  if (tls.enabled()) {
    add("--tls-cert", tls.cert);
    add("--tls-key", tls.key);
    add("--tls-ca", tls.ca);
  }
  if (!options.port_range.empty()) add("--port-range", options.port_range);
  if (!options.http_token_file.empty()) add("--http-token-file", options.http_token_file);
  if (options.insecure_http && !CoorddArgument(options, "--insecure-http"))
    command.emplace_back("--insecure-http");
  if (options.min_np > 0) {
    // The first generation has all that come; that --min-np are there is no reason to go without
    // the slower ones.
    const bool grows = !options.discovery_script.empty();  // who comes later is taken in then
    add("--settling-window", grows ? kGrowingSettlingWindow : kElasticSettlingWindow);
    add("--reform-timeout", absl::FormatDuration(options.elastic_timeout));
    if (options.reset_limit > 0) add("--reset-limit", absl::StrCat(options.reset_limit));
  }
  command.insert(command.end(), options.coordd_arguments.begin(), options.coordd_arguments.end());
  return command;
}

absl::StatusOr<CoordinatorAddresses> ParseReadyLine(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("listen") || !json["listen"].is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("coordd announced '",
                                                   absl::StripAsciiWhitespace(line),
                                                   "': expected JSON with its address"));
  }
  CoordinatorAddresses addresses{.listen = json["listen"].get<std::string>(), .http = ""};
  if (json.contains("http") && json["http"].is_string())
    addresses.http = json["http"].get<std::string>();
  return addresses;
}

absl::StatusOr<CoordinatorProcess> StartCoordinator(const RunOptions& options,
                                                    const CoordinatorSetup& setup,
                                                    const Environment& environment,
                                                    absl::Time deadline, Clock& clock) {
  const absl::Time began = clock.Now();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("a pipe cannot be made: ", std::strerror(errno)));
  }
  OwnedFd ready(ends[0]), theirs(ends[1]);
  const ChildRequest request = {
      .command = CoordinatorCommand(CoordinatorProgram(), options, setup, theirs.get()),
      .environment = environment,
      .inherited_fd = theirs.get()};
  COORDD_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(request));
  theirs.Close();
  const bool in_time = AwaitReadable(ready.get(), deadline, clock);
  const std::string line = in_time ? ReadAvailable(ready.get()) : "";
  if (!line.empty()) {
    auto addresses = ParseReadyLine(line);
    if (addresses.ok()) return CoordinatorProcess{std::move(process), *std::move(addresses)};
    process.Signal(SIGKILL);
    AwaitReadable(process.pidfd(), clock.Now() + absl::Seconds(1), clock);
    process.Reap();
    return addresses.status();
  }
  if (!in_time) process.Signal(SIGKILL);
  AwaitReadable(process.pidfd(), std::max(deadline, clock.Now() + absl::Seconds(1)), clock);
  const std::string said(absl::StripAsciiWhitespace(ReadAvailable(process.err().get())));
  process.Signal(SIGKILL);
  AwaitReadable(process.pidfd(), clock.Now() + absl::Seconds(1), clock);
  process.Reap();
  const std::string why = said.empty() ? "it said nothing" : said;
  if (!in_time)
    return absl::DeadlineExceededError(
        absl::StrCat("coordd, which loads its libraries, opens its state in ", setup.store,
                     " and listens at ", setup.listen, ", was not there after ",
                     absl::FormatDuration(absl::Trunc(deadline - began, absl::Milliseconds(1))),
                     " (--start-timeout): ", why));
  return absl::UnavailableError(absl::StrCat("coordd did not start: ", why));
}

}  // namespace coordd
