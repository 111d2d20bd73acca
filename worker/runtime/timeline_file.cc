#include "worker/runtime/timeline_file.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/log.h"
#include "common/base/named_file.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "worker/protocol/trace_chunks.h"

namespace coordd {
namespace {

constexpr absl::string_view kRankMark = "{rank}";

}  // namespace

std::string TimelinePath(const std::string& path, int32_t rank) {
  if (absl::StrContains(path, kRankMark))
    return absl::StrReplaceAll(path, {{kRankMark, absl::StrCat(rank)}});
  return rank == 0 ? path : "";
}

absl::StatusOr<std::unique_ptr<TimelineFile>> TimelineFile::Start(TimelineOptions options,
                                                                  TraceRecorder& recorder,
                                                                  Clock& clock) {
  absl::StatusOr<OwnedFd> opened = OpenToWrite(options.path, O_CREAT | O_TRUNC, 0666);
  if (!opened.ok())
    return absl::InvalidArgumentError(absl::StrCat("the timeline ", opened.status().message()));
  std::FILE* file = fdopen(opened->get(), "w");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("the timeline ", options.path, " cannot be written: ", std::strerror(errno)));
  }
  opened->Release();
  std::unique_ptr<TimelineFile> timeline(
      new TimelineFile(std::move(options), file, recorder, clock));
  std::string head = "[\n";
  timeline->events_.AddProcess(timeline->options_.title, &head);
  timeline->events_.AddOrigin(&head);
  if (!timeline->Write(head)) return timeline->status_;
  recorder.Begin(TraceRecorder::For::kFile, TraceRecorder::kRecordsMax);
  timeline->thread_ = StartThread("timeline", [raw = timeline.get()] { raw->Run(); });
  return timeline;
}

TimelineFile::TimelineFile(TimelineOptions options, std::FILE* file, TraceRecorder& recorder,
                           Clock& clock)
    : options_(std::move(options)),
      recorder_(recorder),
      clock_(clock),
      file_(file),
      events_(options_.rank, absl::ToUnixNanos(clock.Now()), options_.mark_steps) {}

TimelineFile::~TimelineFile() { Stop().IgnoreError(); }

absl::Status TimelineFile::Stop() {
  if (file_ == nullptr) return status_;
  {
    MutexLock lock(&mu_);
    stop_ = true;
    stop_changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  if (Append(recorder_.End(TraceRecorder::For::kFile)))
    Write(absl::StrCat("{\"ph\":\"M\",\"pid\":", options_.rank,
                       ",\"name\":\"timeline_ended\",\"args\":{}}\n]\n"));
  if (std::fclose(std::exchange(file_, nullptr)) != 0 && status_.ok()) {
    status_ = absl::UnavailableError(
        absl::StrCat("the timeline ", options_.path, " is incomplete: ", std::strerror(errno)));
  }
  return status_;
}

void TimelineFile::Run() {
  bool stop = false;
  while (!stop) {
    {
      MutexLock lock(&mu_);
      auto stopped = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return stop_; };
      stop = clock_.Await(&mu_, &stop_changed_, stopped, clock_.Now() + kInterval);
    }
    if (stop || Append(recorder_.Take(TraceRecorder::For::kFile))) continue;
    COORDD_LOG(kWarning, status_.message());
    recorder_.End(TraceRecorder::For::kFile);
    return;
  }
}

bool TimelineFile::Append(const TraceRecorder::Recorded& recorded) {
  if (!status_.ok()) return false;
  if (recorded.records.empty()) return true;
  std::string text;
  events_.AddBatches(
      ToTraceBatches(recorded.records, options_.backend), /*offset_ns=*/0,
      [](const v1::TraceBatch&) { return int64_t{0}; }, &text);
  return Write(text);
}

bool TimelineFile::Write(absl::string_view text) {
  bytes_ += static_cast<int64_t>(text.size());
  if (bytes_ > kBytesMax) {
    status_ = absl::ResourceExhaustedError(absl::StrCat(
        "the timeline ", options_.path, " ends here: it has ", kBytesMax >> 20,
        " MiB, and no more would open; `coordctl trace` records a few steps of all ranks"));
    return false;
  }
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file_) == text.size() && std::fflush(file_) == 0;
  if (!written) {
    status_ = absl::UnavailableError(
        absl::StrCat("the timeline ", options_.path, " ends here: ", std::strerror(errno)));
  }
  return written;
}

}  // namespace coordd
