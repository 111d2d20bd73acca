// Where the lines of the workers go. (io)
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/shared_screen.h"
#include "client/coordrun/process/stream_splitter.h"
#include "common/base/owned_fd.h"

namespace coordd {

enum class Stream { kOut, kErr };

// One owner, one thread. Each piece is one write, whole; it blocks as long as whoever reads does.
class Output {
 public:
  // `colour`: of prefixes, where the stream is a terminal.
  Output(const RunOptions& options, bool colour);

  // Makes the files of --output-dir. UNAVAILABLE: names the file.
  absl::Status OpenFiles();
  // Opens the output files of a worker that joined after the start.
  absl::Status OpenFilesOf(int32_t local_rank);

  void WorkerSaid(int32_t local_rank, Stream stream, const OutputPiece& piece);
  void CoordinatorLine(absl::string_view line);
  // coordrun's own words, on stderr.
  void Say(absl::string_view text);
  // For programs, on stdout.
  void Result(absl::string_view line);
  // The workers have said all that they will: no line stays open.
  void Finish();

 private:
  SharedScreen& ScreenOf(Stream stream) {
    return stream == Stream::kOut || one_screen_ ? out_screen_ : err_screen_;
  }
  void Write(Stream stream, absl::string_view bytes);
  // Once for each place.
  void TellLost(const std::string& where, int error);

  const RunOptions& options_;
  const bool colour_out_, colour_err_;
  // What stands on stdout and stderr; the same, where both go to the same place.
  const bool one_screen_;
  SharedScreen out_screen_, err_screen_;
  std::vector<OwnedFd> files_;  // out and err of each rank; empty without --output-dir
  std::set<std::string> told_lost_;
};

}  // namespace coordd
