#include "client/coordrun/program/host_discovery.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/coordrun/plan/host_answers.h"
#include "client/coordrun/plan/slot_book.h"
#include "common/base/counted.h"

namespace coordd {
namespace {

constexpr absl::Duration kEvery = absl::Seconds(1);
// A batch system that is asked for its hosts may be slow; one that never answers says nothing.
constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr size_t kMaxAnswerBytes = 1 << 20;
// At once, of one that writes faster than it is read: the run has other things to do.
constexpr int kMostReads = 64;
// Of an answer that is too long, enough to know it by.
constexpr size_t kShownBytes = 40;
// What the shell says of a command that it cannot run.
constexpr int kNotExecutable = 126, kNotFound = 127;

bool CannotRun(const ProcessEnd& end) {
  return end.signal == 0 && (end.code == kNotExecutable || end.code == kNotFound);
}

std::string LastLine(const std::string& text) {
  const absl::string_view said = absl::StripAsciiWhitespace(text);
  return std::string(said.substr(said.rfind('\n') + 1));
}

}  // namespace

void HostDiscovery::Await(std::vector<pollfd>& fds) {
  const auto add = [&fds](int fd) { fds.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
  add(process_ ? process_->pidfd() : -1);
  // poll skips the negative ones: closed, or not there.
  add(process_ ? process_->out().get() : -1);
  add(process_ ? process_->err().get() : -1);
}

void HostDiscovery::Read(OwnedFd& from, std::string& into) {
  char buffer[16 << 10];
  ssize_t got = 0;
  for (int i = 0; i < kMostReads && from.valid(); ++i) {
    got = read(from.get(), buffer, sizeof(buffer));
    if (got <= 0) break;
    if (into.size() < kMaxAnswerBytes) into.append(buffer, static_cast<size_t>(got));
  }
  const bool again = got < 0 && (errno == EAGAIN || errno == EINTR);
  if (from.valid() && got <= 0 && !again) from.Close();
}

std::optional<absl::StatusOr<std::vector<HostSlots>>> HostDiscovery::Handle(
    absl::Span<const pollfd> fds, absl::Time now) {
  if (!process_) {
    if (now < next_start_) return std::nullopt;
    next_start_ = now + kEvery;
    auto started =
        ChildProcess::Start({.command = {"/bin/sh", "-c", script_}, .environment = environment_});
    if (!started.ok()) return started.status();
    process_ = *std::move(started);
    out_.clear();
    err_.clear();
    too_slow_ = false;
    give_up_ = now + kPatience;
    return std::nullopt;
  }
  if (now >= give_up_) {
    too_slow_ = true;
    give_up_ = absl::InfiniteFuture();
    process_->Signal(SIGKILL);
  }
  // The processes in this turn may not be those that were waited for in it.
  const bool ended =
      fds.size() == kEntries && fds[0].fd == process_->pidfd() && fds[0].revents != 0;
  Read(process_->out(), out_);
  Read(process_->err(), err_);
  if (out_.size() >= kMaxAnswerBytes) process_->Signal(SIGKILL);  // `yes` never ends
  const std::optional<ProcessEnd> end = ended ? process_->Reap() : std::nullopt;
  if (!end) return std::nullopt;
  // What it wrote before it ended.
  Read(process_->out(), out_);
  Read(process_->err(), err_);
  process_.reset();
  return Result(*end);
}

absl::StatusOr<std::vector<HostSlots>> HostDiscovery::Result(const ProcessEnd& end) const {
  if (out_.size() >= kMaxAnswerBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--host-discovery-script printed more than ", kMaxAnswerBytes >> 20, " MiB, which begins '",
        absl::CEscape(out_.substr(0, std::min(out_.find('\n'), kShownBytes))),
        "': expected a host a line, and an end"));
  }
  if (end.ok()) {
    auto hosts = ParseDiscovered(out_, slots_per_host_);
    if (hosts.ok()) return hosts;
    return absl::InvalidArgumentError(
        absl::StrCat("--host-discovery-script printed ", hosts.status().message()));
  }
  const std::string said = LastLine(err_);
  if (CannotRun(end)) {
    return absl::NotFoundError(
        absl::StrCat("--host-discovery-script '", script_, "' cannot be run",
                     said.empty() ? absl::StrCat(": it ", end.ToString()) : ": " + said,
                     "; expected a command of the shell that prints the hosts"));
  }
  return absl::UnavailableError(
      absl::StrCat("--host-discovery-script ",
                   too_slow_ ? absl::StrCat("did not end within ", absl::FormatDuration(kPatience))
                             : end.ToString(),
                   said.empty() ? "" : absl::StrCat(": ", said)));
}

absl::StatusOr<std::vector<HostSlots>> DiscoverFirstHosts(
    const RunOptions& options, const Environment& environment, Clock& clock,
    const std::function<void(const std::string& sentence)>& tell) {
  HostDiscovery discovery(options.discovery_script, options.slots_per_host, environment);
  const int32_t needed = options.min_np > 0 ? options.min_np : options.np;
  const absl::Time end = clock.Now() + options.elastic_timeout;
  std::string found = "it has not ended yet";
  HostAnswers answers(/*least=*/0, "it is asked again every second");
  while (clock.Now() < end) {
    std::vector<pollfd> fds;
    discovery.Await(fds);
    const absl::Duration left =
        std::max(std::min(discovery.NextDeadline(), end) - clock.Now(), absl::ZeroDuration());
    poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
    const auto result = discovery.Handle(fds, clock.Now());
    if (!result) continue;
    if (result->ok() && SlotsOf(**result) >= needed) return *result;
    // It will not be there a second later either.
    if (absl::IsNotFound(result->status())) return *result;
    const std::string problem = answers.Judge(*result, clock.Now()).say;
    if (!problem.empty()) tell(problem);
    found = result->ok() ? absl::StrCat("it has found ", SlotsOf(**result))
                         : std::string(result->status().message());
  }
  return absl::DeadlineExceededError(
      absl::StrCat("--host-discovery-script: no slots for ", Counted(needed, "worker"), " within ",
                   absl::FormatDuration(options.elastic_timeout), " (--elastic-timeout): ", found));
}

}  // namespace coordd
