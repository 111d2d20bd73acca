// Where the lines of the workers go. (io)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/coordrun/run_options.h"
#include "client/coordrun/unique_fd.h"

namespace coordd {

enum class Stream { kOut, kErr };

// One owner, one thread. Each line is one write, whole; it blocks as long as whoever reads does.
class Output {
 public:
  // `colour`: of prefixes, where the stream is a terminal.
  Output(const RunOptions& options, bool colour);

  // Makes the files of --output-dir. UNAVAILABLE: names the file.
  absl::Status OpenFiles();
  // Of one more worker.
  absl::Status OpenFilesOf(int32_t local_rank);

  // A line without its end.
  void WorkerLine(int32_t local_rank, Stream stream, absl::string_view line);
  void CoordinatorLine(absl::string_view line);
  // coordrun's own words, on stderr.
  void Say(absl::string_view text);
  // For programs, on stdout.
  void Result(absl::string_view line);

 private:
  const RunOptions& options_;
  const bool colour_out_, colour_err_;
  std::vector<UniqueFd> files_;  // out and err of each rank; empty without --output-dir
};

}  // namespace coordd
