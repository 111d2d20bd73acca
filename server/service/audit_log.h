// Who has done what to others' work, and who has tried: a line of JSON for each, in files that
// refusals cannot flush. (io)
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/bounded_queue.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "server/model/access_rules.h"

namespace coordd {

class ServerMetrics;

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
  // Calls of one kind that fail, and are written: some at once, then one in this time, which says
  // how many others there were. Those of a year fill less than half of the files. Of new jobs it is
  // one in a second.
  static constexpr absl::Duration kFailedEvery = absl::Minutes(10);

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

  void NoteRefused(const AuditEntry& entry);
  void Run();
  absl::Status Append(const std::string& lines);
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
  std::map<std::pair<Call, bool>, LogLimit> limits_ ABSL_GUARDED_BY(mu_);  // and whether it failed
  std::map<Call, LogLimit> log_limits_ ABSL_GUARDED_BY(mu_);

  // Touched by the thread only, once it has begun.
  OwnedFd file_;
  int64_t bytes_ = 0;
};

}  // namespace coordd
