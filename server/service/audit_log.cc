#include "server/service/audit_log.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/base/utf8.h"

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

std::string LostLine(int64_t entries, absl::Time at) {
  return absl::StrCat("{\"time\":\"",
                      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", at, absl::UTCTimeZone()),
                      "\",\"what\":\"", Counted(entries, "entry", "entries"), " had no room\"}\n");
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
    std::optional<std::string> passes = PassLimit(entry);
    if (!passes.has_value()) return;
    more = *std::move(passes);
  }
  if (options_.file.empty()) return;
  AuditEntry written = entry;
  absl::StrAppend(&written.what, more);
  if (!lines_.TryPush(AuditLine(written, clock_.Now()) + "\n"))
    Lose(1, ServerMetrics::AuditLoss::kQueueFull);
}

// One identity's flood hides nothing that others do.
std::optional<std::string> AuditLog::PassLimit(const AuditEntry& entry) {
  const Identity who = entry.caller == nullptr ? WithoutTls() : entry.caller->identity;
  Kind kind{entry.call, !entry.outcome.ok(), ToString(who)};
  const absl::Time now = clock_.Now();
  MutexLock lock(&mu_);
  if (limits_.size() >= kOwnLimits && limits_.find(kind) == limits_.end()) {
    std::erase_if(limits_, [now](const auto& limit) { return limit.second.IsUnused(now); });
    if (limits_.size() >= kOwnLimits) kind.who.clear();
  }
  const absl::Duration interval = kind.failed ? kFailedEvery : LogLimit::kInterval;
  return limits_.try_emplace(std::move(kind), interval).first->second.Pass(now);
}

void AuditLog::Lose(int64_t entries, ServerMetrics::AuditLoss why) {
  lost_ += entries;
  metrics_.OnAuditEntriesLost(entries, why);
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
  while (!lines_.Finished()) {
    lines_.TakeAll(lost_ > 0 ? clock_.Now() + kTriedEvery : absl::InfiniteFuture(), taken);
    Write(taken);
  }
  if (lost_ > 0) Write({});
}

void AuditLog::Write(const std::vector<std::string>& lines) {
  const int64_t lost = lost_.exchange(0);
  std::string text = lost > 0 ? LostLine(lost, clock_.Now()) : "";
  for (const std::string& line : lines) text += line;
  if (text.empty()) return;
  absl::string_view left = text;
  const absl::Status status = Append(left);
  if (status.ok()) return;
  int64_t entries = std::count(left.begin(), left.end(), '\n');
  if (lost > 0 && left.size() == text.size()) {  // not told yet, and counted before
    lost_ += lost;
    --entries;
  }
  Lose(entries, ServerMetrics::AuditLoss::kNotWritten);
  if (const auto more = cannot_limit_.Pass(clock_.Now()); more.has_value())
    COORDD_LOG(kError, status.message(), *more);
}

absl::Status AuditLog::OpenFile() {
  file_ = OwnedFd(open(options_.file.c_str(),
                       O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat found = {};
  if (!file_.valid() || fstat(file_.get(), &found) != 0) return CannotWrite(options_.file);
  if (!S_ISREG(found.st_mode)) {
    file_.Close();
    return absl::UnavailableError(
        absl::StrCat("audit log ", options_.file, " is no file, expected one or a new name"));
  }
  bytes_ = found.st_size;
  // Whoever wrote the last line may have died, or have had no more room, in the middle of it.
  char last = '\n';
  if (bytes_ > 0 && pread(file_.get(), &last, 1, bytes_ - 1) < 0) return CannotWrite(options_.file);
  line_end_ = last == '\n' ? "" : "\n";
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

absl::Status AuditLog::AppendBytes(absl::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return CannotWrite(options_.file);
    bytes.remove_prefix(static_cast<size_t>(n));
    bytes_ += n;
  }
  return absl::OkStatus();
}

absl::Status AuditLog::EndLine() {
  absl::string_view left = line_end_;
  const absl::Status status = AppendBytes(left);
  line_end_ = std::string(left);
  return status;
}

// Behind a crash of the machine, too, what was answered long ago is there.
absl::Status AuditLog::Append(absl::string_view& lines) {
  if (file_.valid()) COORDD_RETURN_IF_ERROR(EndLine());
  if (!file_.valid() || IsMoved()) COORDD_RETURN_IF_ERROR(OpenFile());
  if (bytes_ > 0 && bytes_ + static_cast<int64_t>(lines.size()) > options_.bytes_max)
    COORDD_RETURN_IF_ERROR(Rotate());
  COORDD_RETURN_IF_ERROR(EndLine());
  const absl::string_view all = lines;
  const absl::Status status = AppendBytes(lines);
  const size_t written = all.size() - lines.size();
  if (written > 0 && all[written - 1] != '\n') {
    line_end_ = std::string(lines.substr(0, lines.find('\n') + 1));
    lines.remove_prefix(line_end_.size());
  }
  COORDD_RETURN_IF_ERROR(status);
  return fdatasync(file_.get()) == 0 ? absl::OkStatus() : CannotWrite(options_.file);
}

}  // namespace coordd
