// The timeline of one rank, written to a file while the program runs. (io)
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/chrome_trace.h"
#include "worker/execute/trace_recorder.h"

namespace coordd {

struct TimelineOptions {
  std::string path;
  int32_t rank = 0;
  std::string title;    // of the rank
  std::string backend;  // of the data plane
  bool mark_steps = false;
};

// Takes what the recorder has twenty times a second and appends it: who looks into the file a
// moment behind an operation finds it there. The file is one that Perfetto opens at any time: its
// JSON needs no end, but gets one.
class TimelineFile {
 public:
  // More than Perfetto opens; then it ends with a warning.
  static constexpr int64_t kBytesMax = int64_t{1} << 30;
  static constexpr absl::Duration kInterval = absl::Milliseconds(50);

  // Replaces the file, starts the thread "timeline". INVALID_ARGUMENT: it cannot be written; names
  // it and why. `recorder` and `clock` outlive it.
  static absl::StatusOr<std::unique_ptr<TimelineFile>> Start(TimelineOptions options,
                                                             TraceRecorder& recorder, Clock& clock);
  ~TimelineFile();  // Stop

  // Writes the rest and closes the file. Idempotent; one thread. What went wrong while it was
  // written.
  absl::Status Stop();

 private:
  TimelineFile(TimelineOptions options, std::FILE* file, TraceRecorder& recorder, Clock& clock);

  void Run();
  // False: nothing more is written.
  bool Append(const TraceRecorder::Recorded& recorded);
  bool Write(absl::string_view text);

  // Constant after construction.
  const TimelineOptions options_;
  TraceRecorder& recorder_;
  Clock& clock_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar stop_changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  // Touched by the thread "timeline", and by the owner's before it starts and after it has ended.
  std::FILE* file_;
  ChromeTrace events_;
  int64_t bytes_ = 0;
  absl::Status status_;

  // Touched by the owner's thread.
  std::thread thread_;
};

// Where rank `rank` writes when it is told `path`: there, if it is rank 0 or "{rank}" stands in it,
// for which its number is put. Empty: it does not; Horovod's rank 0 writes alone, too.
std::string TimelinePath(const std::string& path, int32_t rank);

}  // namespace coordd
