// Who has done what to others' work, and who has tried: a line of JSON for each, in files that
// refusals cannot flush. (io)
#pragma once

#include <atomic>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "server/metrics/server_metrics.h"
#include "server/model/access_rules.h"

namespace coordd {

struct AuditOptions {
  std::string file;                       // empty: none is kept, and refusals are only counted
  int64_t bytes_max = int64_t{16} << 20;  // of one file; then it becomes FILE.1, and FILE.1 FILE.2
  int files_max = 8;                      // behind FILE: with it some 700,000 entries
};

struct AuditEntry {
  Call call = Call::kDismiss;
  std::shared_ptr<const Caller> caller = {};  // null: somebody without TLS
  std::string job = {};
  std::string what = {};      // what was asked for, a phrase
  absl::Status outcome = {};  // as the caller was told
};

// The entry as a line of the file, without its end.
std::string AuditLine(const AuditEntry& entry, absl::Time at);

// Thread-safe but for Open, Stop and the destructor, which its owner calls. Its thread is `audit`.
class AuditLog {
 public:
  // Calls of one kind and one identity that fail, and are written: some at once, then one in this
  // time, which says how many others there were. Those of all kinds that one identity makes in a
  // year fill a tenth of the files. Of new jobs it is one in a second.
  static constexpr absl::Duration kFailedEvery = absl::Hours(1);
  // Kinds of calls of so many identities have limits of their own, which some hundred bytes each
  // take; those of the rest share one for each kind.
  static constexpr size_t kOwnLimits = 1024;
  // What could not be written is told of as soon as there is room, which is looked for so often.
  static constexpr absl::Duration kTriedEvery = absl::Seconds(10);

  AuditLog(ServerMetrics& metrics, Clock& clock);
  ~AuditLog();  // Stop

  // UNAVAILABLE: the file cannot be written; says which.
  absl::Status Open(const AuditOptions& options);

  // The one place that all calls go to that were refused for who calls (PERMISSION_DENIED,
  // UNAUTHENTICATED): they are counted, and said in coordd's log with whose they were; of joins the
  // event's line does. Never blocks: an entry for which there is no room is counted, and the file
  // says how many.
  void Note(const AuditEntry& entry);

  // Writes what is queued. Idempotent.
  void Stop();

 private:
  static constexpr size_t kCapacity = 4096;

  // Of calls that anybody can make often.
  struct Kind {
    Call call;
    bool failed;
    std::string who;  // ToString of the identity; empty: those without a limit of their own
    auto operator<=>(const Kind&) const = default;
  };

  void NoteRefused(const AuditEntry& entry);
  // What is to stand behind the entry; absent: it is not written.
  std::optional<std::string> PassLimit(const AuditEntry& entry);
  void Lose(int64_t entries, ServerMetrics::AuditLoss why);
  void Run();
  // With how many entries are missing, if there are any.
  void Write(const std::vector<std::string>& lines);
  // Takes from `lines` what it has written or begun. A line that was begun is ended before others.
  absl::Status Append(absl::string_view& lines);
  absl::Status AppendBytes(absl::string_view& bytes);
  absl::Status EndLine();
  absl::Status OpenFile();
  bool IsMoved() const;
  absl::Status Rotate();

  // Constant after Open.
  AuditOptions options_;
  ServerMetrics& metrics_;
  Clock& clock_;
  std::thread thread_;

  // Thread-safe by themselves.
  BoundedQueue<std::string> lines_;
  std::atomic<int64_t> lost_{0};

  // Guarded by mu_.
  Mutex mu_;
  std::map<Kind, LogLimit> limits_ ABSL_GUARDED_BY(mu_);
  std::map<Call, LogLimit> log_limits_ ABSL_GUARDED_BY(mu_);

  // Touched by the thread only, once it has begun.
  OwnedFd file_;
  int64_t bytes_ = 0;
  std::string line_end_;  // of the line that the file ends in the middle of; empty: of none
  LogLimit cannot_limit_;
};

}  // namespace coordd
