#include "client/coordrun/plan/output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/coordrun/process/line_splitter.h"
#include "common/base/named_file.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace coordd {
namespace {

// 0, or the error that keeps the rest from being written. Waits for
// readers, also where the file is non-blocking, which whoever shares it with us may make it.
int WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd room = {.fd = fd, .events = POLLOUT, .revents = 0};
      poll(&room, 1, -1);
      continue;
    }
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

bool SameFile(int a, int b) {
  struct stat first {
  }, second{};
  return fstat(a, &first) == 0 && fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the folder ", path, " for output cannot be made: ", error.message()));
}

}  // namespace

Output::Output(const RunOptions& options, bool colour)
    : options_(options),
      colour_out_(colour && isatty(STDOUT_FILENO) == 1),
      colour_err_(colour && isatty(STDERR_FILENO) == 1),
      one_screen_(SameFile(STDOUT_FILENO, STDERR_FILENO)),
      out_screen_(isatty(STDOUT_FILENO) == 1),
      err_screen_(isatty(STDERR_FILENO) == 1) {}

absl::Status Output::OpenFiles() {
  if (options_.output_directory.empty()) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(MakeFolder(options_.output_directory));
  for (int32_t r = 0; r < options_.np; ++r) COORDD_RETURN_IF_ERROR(OpenFilesOf(r));
  return absl::OkStatus();
}

absl::Status Output::OpenFilesOf(int32_t local_rank) {
  if (options_.output_directory.empty()) return absl::OkStatus();
  const int32_t rank = options_.first_rank + local_rank;
  std::string stem = absl::StrCat(options_.output_directory, "/rank-", rank, ".");
  if (options_.output_as_horovod) {
    stem = absl::StrCat(options_.output_directory, "/rank.", rank);
    COORDD_RETURN_IF_ERROR(MakeFolder(stem));
    stem += "/std";
  }
  const size_t first = static_cast<size_t>(local_rank) * 2;
  files_.resize(std::max(files_.size(), first + 2));
  for (const size_t i : {first, first + 1}) {
    const std::string path = stem + (i == first ? "out" : "err");
    COORDD_ASSIGN_OR_RETURN(files_[i], OpenToWrite(path, O_CREAT | O_TRUNC, 0666));
  }
  return absl::OkStatus();
}

void Output::WorkerSaid(int32_t local_rank, Stream stream, const OutputPiece& piece) {
  const bool out = stream == Stream::kOut;
  const int32_t size = options_.size == 0 ? options_.np : options_.size;
  const std::string prefix = options_.prefix ? RankPrefix(options_.first_rank + local_rank, size,
                                                          out ? colour_out_ : colour_err_)
                                             : std::string();
  const int32_t source = local_rank * 2 + (out ? 0 : 1);
  Write(stream, ScreenOf(stream).Add(source, prefix, piece));
  const auto file = static_cast<size_t>(source);
  if (file >= files_.size()) return;
  if (const int error = WriteAll(files_[file].get(), absl::StrCat(piece.text, BytesOf(piece.end))))
    TellLost(absl::StrCat("the file of rank ", options_.first_rank + local_rank,
                          out ? "'s stdout" : "'s stderr", " in ", options_.output_directory),
             error);
}

void Output::Write(Stream stream, absl::string_view bytes) {
  const bool out = stream == Stream::kOut;
  const int error = WriteAll(out ? STDOUT_FILENO : STDERR_FILENO, bytes);
  if (error != 0 && out) TellLost("stdout", error);
}

// A reader that has gone (EPIPE) wants no more: `| head`.
void Output::TellLost(const std::string& where, int error) {
  if (error == EPIPE || !told_lost_.insert(where).second) return;
  Say(absl::StrCat("coordrun: what is written to ", where, " is lost: ", std::strerror(error)));
}

void Output::CoordinatorLine(absl::string_view line) {
  Say(absl::StrCat(options_.prefix ? "[coordd] " : "", line));
}

void Output::Say(absl::string_view text) {
  // Much of it comes from elsewhere: coordd, other hosts, the environment.
  Write(Stream::kErr, ScreenOf(Stream::kErr).AddLine(PrintableText(text, "\n\t")));
}

void Output::Result(absl::string_view line) {
  Write(Stream::kOut, ScreenOf(Stream::kOut).AddLine(PrintableJson(line)));
}

void Output::Finish() {
  Write(Stream::kOut, out_screen_.Finish());
  Write(Stream::kErr, err_screen_.Finish());
}

}  // namespace coordd
