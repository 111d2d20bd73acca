#include "server/service/audit_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/base/utf8.h"
#include "server/metrics/server_metrics.h"

namespace coordd {
namespace {

constexpr size_t kMaxTextBytes = 1024;

std::string Bounded(absl::string_view text) {
  return PrintableText(ShortenedText(text, kMaxTextBytes));
}

absl::Status CannotWrite(const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("audit log ", path, " cannot be written: ", std::strerror(errno)));
}

// Whoever calls often enough can make as many of these as he likes: calls that fail, and jobs.
bool IsCheap(const AuditEntry& entry) { return !entry.outcome.ok() || entry.call == Call::kJoin; }

}  // namespace

std::string AuditLine(const AuditEntry& entry, absl::Time at) {
  const Identity who = entry.caller == nullptr ? WithoutTls() : entry.caller->identity;
  nlohmann::ordered_json json = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", at, absl::UTCTimeZone())},
      {"call", std::string(Name(entry.call))},
      {"role", std::string(who == WithoutTls() ? "" : Name(who.role))},
      {"name", Bounded(who.name)},
      {"peer", entry.caller == nullptr ? "" : Bounded(entry.caller->peer)},
      {"job", Bounded(entry.job)},
      {"what", Bounded(entry.what)},
      {"code", absl::StatusCodeToString(entry.outcome.code())},
      {"message", Bounded(entry.outcome.message())}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

AuditLog::AuditLog(ServerMetrics& metrics, Clock& clock)
    : metrics_(metrics), clock_(clock), lines_(kCapacity, clock) {}

AuditLog::~AuditLog() { Stop(); }

absl::Status AuditLog::Open(const AuditOptions& options) {
  options_ = options;
  if (options_.file.empty()) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(OpenFile());
  thread_ = StartThread("audit", [this] { Run(); });
  return absl::OkStatus();
}

void AuditLog::Note(const AuditEntry& entry) {
  std::string more;
  if (absl::IsPermissionDenied(entry.outcome) || absl::IsUnauthenticated(entry.outcome))
    NoteRefused(entry);
  if (IsCheap(entry)) {
    MutexLock lock(&mu_);
    const bool failed = !entry.outcome.ok();
    LogLimit& limit =
        limits_
            .try_emplace(std::pair(entry.call, failed), failed ? kFailedEvery : LogLimit::kInterval)
            .first->second;
    std::optional<std::string> passes = limit.Pass(clock_.Now());
    if (!passes.has_value()) return;
    more = *std::move(passes);
  }
  if (options_.file.empty()) return;
  AuditEntry written = entry;
  absl::StrAppend(&written.what, more);
  if (!lines_.TryPush(AuditLine(written, clock_.Now()) + "\n")) ++lost_;
}

void AuditLog::NoteRefused(const AuditEntry& entry) {
  const Role role = entry.caller == nullptr ? Role::kNone : entry.caller->identity.role;
  metrics_.OnCallDenied(Name(entry.call), Name(role));
  if (entry.call == Call::kJoin) return;
  std::optional<std::string> more;
  {
    MutexLock lock(&mu_);
    more = log_limits_[entry.call].Pass(clock_.Now());
  }
  if (!more.has_value()) return;
  COORDD_LOG(
      kWarning, "a call of ", Name(entry.call), " was refused: ", Bounded(entry.outcome.message()),
      " (", entry.caller == nullptr ? "nobody is known to have made it" : CallerText(*entry.caller),
      ")", *more);
}

void AuditLog::Stop() {
  lines_.Close();
  if (thread_.joinable()) thread_.join();
}

void AuditLog::Run() {
  std::vector<std::string> taken;
  LogLimit limit;
  while (!lines_.Finished()) {
    lines_.TakeAll(absl::InfiniteFuture(), taken);
    std::string lines;
    if (const int64_t lost = lost_.exchange(0); lost > 0) {
      absl::StrAppend(&lines, "{\"time\":\"",
                      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", clock_.Now(), absl::UTCTimeZone()),
                      "\",\"what\":\"", lost, " entries had no room\"}\n");
    }
    for (const std::string& line : taken) lines += line;
    if (lines.empty()) continue;
    const absl::Status status = Append(lines);
    if (status.ok()) continue;
    lost_ += static_cast<int64_t>(taken.size());
    if (const auto more = limit.Pass(clock_.Now()); more.has_value())
      COORDD_LOG(kError, status.message(), *more);
  }
}

absl::Status AuditLog::OpenFile() {
  file_ = OwnedFd(open(options_.file.c_str(),
                       O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat found = {};
  if (!file_.valid() || fstat(file_.get(), &found) != 0) return CannotWrite(options_.file);
  if (!S_ISREG(found.st_mode)) {
    file_.Close();
    return absl::UnavailableError(
        absl::StrCat("audit log ", options_.file, " is no file, expected one or a new name"));
  }
  bytes_ = found.st_size;
  return absl::OkStatus();
}

// By somebody else's rotation.
bool AuditLog::IsMoved() const {
  struct stat there = {}, ours = {};
  return stat(options_.file.c_str(), &there) != 0 || fstat(file_.get(), &ours) != 0 ||
         there.st_ino != ours.st_ino || there.st_dev != ours.st_dev;
}

absl::Status AuditLog::Rotate() {
  for (int i = options_.files_max - 1; i >= 0; --i) {
    const std::string from = i == 0 ? options_.file : absl::StrCat(options_.file, ".", i);
    const std::string to = absl::StrCat(options_.file, ".", i + 1);
    if (rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT) return CannotWrite(to);
  }
  return OpenFile();
}

// Behind a crash of the machine, too, what was answered long ago is there.
absl::Status AuditLog::Append(const std::string& lines) {
  if (!file_.valid() || IsMoved()) COORDD_RETURN_IF_ERROR(OpenFile());
  if (bytes_ > 0 && bytes_ + static_cast<int64_t>(lines.size()) > options_.bytes_max)
    COORDD_RETURN_IF_ERROR(Rotate());
  size_t written = 0;
  while (written < lines.size()) {
    const ssize_t n = write(file_.get(), lines.data() + written, lines.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return CannotWrite(options_.file);
    written += static_cast<size_t>(n);
    bytes_ += n;
  }
  return fdatasync(file_.get()) == 0 ? absl::OkStatus() : CannotWrite(options_.file);
}

}  // namespace coordd
