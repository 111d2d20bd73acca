#include "client/coordrun/crews/mpirun_crew.h"

#include <signal.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/coordrun/process/read_lines.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// mpirun --version is one process that prints two lines.
constexpr int kVersionWithinMs = 10000;

absl::StatusOr<MpiLibrary> AskLibrary(const Environment& environment) {
  auto process =
      ChildProcess::Start({.command = {"mpirun", "--version"}, .environment = environment});
  if (!process.ok()) {
    return absl::Status(process.status().code(),
                        absl::StrCat(process.status().message(),
                                     "; --launcher mpirun needs Open MPI's or MPICH's in PATH"));
  }
  pollfd ended = {.fd = process->pidfd(), .events = POLLIN, .revents = 0};
  poll(&ended, 1, kVersionWithinMs);
  char text[4096];
  const ssize_t got = read(process->out().get(), text, sizeof(text));
  process->Signal(SIGKILL);
  poll(&ended, 1, 1000);
  process->Reap();
  return MpiLibraryFrom(std::string(text, got > 0 ? static_cast<size_t>(got) : 0));
}

}  // namespace

std::optional<LabelledLine> ParseLabel(absl::string_view line) {
  LabelledLine labelled;
  absl::string_view left = line;
  if (!absl::ConsumePrefix(&left, "[")) return std::nullopt;
  const size_t close = left.find(']');
  if (close == absl::string_view::npos) return std::nullopt;
  const absl::string_view inside = left.substr(0, close);
  const size_t comma = inside.find(',');  // Open MPI: job,rank
  const absl::string_view rank =
      comma == absl::string_view::npos ? inside : inside.substr(comma + 1);
  if (!absl::SimpleAtoi(rank, &labelled.rank) || labelled.rank < 0) return std::nullopt;
  left.remove_prefix(close + 1);
  if (absl::ConsumePrefix(&left, "<stdout>:")) {
    labelled.stream = Stream::kOut;
  } else if (absl::ConsumePrefix(&left, "<stderr>:")) {
    labelled.stream = Stream::kErr;
  } else if (comma != absl::string_view::npos || !absl::ConsumePrefix(&left, " ")) {
    return std::nullopt;
  }
  labelled.text = left;
  return labelled;
}

std::vector<LabelledLine> ParseLabels(absl::string_view line, int32_t world_size) {
  std::vector<LabelledLine> pieces;
  auto next = ParseLabel(line);
  if (!next || next->rank >= world_size) return pieces;
  // "[1," of Open MPI's, which has the same number of the job in each label.
  const absl::string_view job = line.substr(0, line.find_first_of(",]") + 1);
  while (next) {
    LabelledLine piece = *std::exchange(next, std::nullopt);
    size_t at = piece.stream ? piece.text.find(job) : absl::string_view::npos;
    for (; at != absl::string_view::npos; at = piece.text.find(job, at + 1)) {
      next = ParseLabel(piece.text.substr(at));
      if (next && next->stream && next->rank < world_size) break;
      next.reset();
    }
    piece.text = piece.text.substr(0, at);
    pieces.push_back(piece);
  }
  return pieces;
}

MpirunCrew::MpirunCrew(const RunOptions& options, const RunPlan& plan,
                       std::vector<std::string> rank_command, Environment environment,
                       Environment variables)
    : options_(options),
      plan_(plan),
      rank_command_(std::move(rank_command)),
      environment_(std::move(environment)) {
  for (const char* name : {"COORDD_RANK", "COORDD_LOCAL_RANK", "COORDD_LOCAL_SIZE"}) {
    environment_.erase(name);  // each finds its own in mpirun's variables
  }
  for (const auto& [name, value] : variables) {
    if (value.empty()) {
      environment_.erase(name);
    } else {
      environment_[name] = value;
      names_.push_back(name);
    }
  }
}

absl::Status MpirunCrew::Start(CrewEvents& events) {
  COORDD_ASSIGN_OR_RETURN(const MpiLibrary library, AskLibrary(environment_));
  COORDD_ASSIGN_OR_RETURN(
      process_, ChildProcess::Start(
                    {.command = MpirunCommand(options_, plan_, library, names_, rank_command_),
                     .environment = environment_}));
  for (int32_t worker = 0; worker < plan_.np; ++worker) {
    events.WorkerStarted(worker, "", process_->pid(), "");
  }
  return absl::OkStatus();
}

void MpirunCrew::Await(std::vector<pollfd>& fds) {
  const auto add = [&fds](int fd) { fds.push_back({.fd = fd, .events = POLLIN, .revents = 0}); };
  add(process_ && !process_->reaped() ? process_->pidfd() : -1);
  add(process_ ? process_->out().get() : -1);
  add(process_ ? process_->err().get() : -1);
}

void MpirunCrew::TakeLine(Stream stream, absl::string_view line, CrewEvents& events) const {
  const std::vector<LabelledLine> pieces = ParseLabels(line, plan_.np);
  if (pieces.empty()) events.Notice(absl::StrCat("[mpirun] ", line));
  for (const LabelledLine& piece : pieces) {
    const bool is_last = &piece == &pieces.back();
    if (piece.text.empty() && !is_last) continue;
    events.WorkerSaid(piece.rank, piece.stream.value_or(stream),
                      {piece.text, is_last ? PieceEnd::kNewline : PieceEnd::kNone});
  }
}

void MpirunCrew::Handle(absl::Span<const pollfd> fds, absl::Time /*now*/, CrewEvents& events) {
  if (!process_) return;
  if (fds[1].revents != 0) {
    ReadLines(process_->out(), out_lines_,
              [&](absl::string_view line) { TakeLine(Stream::kOut, line, events); });
  }
  if (fds[2].revents != 0) {
    ReadLines(process_->err(), err_lines_,
              [&](absl::string_view line) { TakeLine(Stream::kErr, line, events); });
  }
  if (fds[0].revents == 0) return;
  if (const auto end = process_->Reap()) {
    for (int32_t worker = 0; worker < plan_.np; ++worker) events.WorkerEnded(worker, *end);
  }
}

void MpirunCrew::Signal(int signal, absl::Time /*now*/) {
  if (process_) process_->Signal(signal);
}

bool MpirunCrew::drained() const {
  return !process_ || (!process_->out_open() && !process_->err_open());
}

void MpirunCrew::KillAll() {
  if (!process_) return;
  process_->Signal(SIGKILL);
  while (!process_->reaped() && !process_->Reap()) {
    pollfd ended = {.fd = process_->pidfd(), .events = POLLIN, .revents = 0};
    poll(&ended, 1, 1000);
  }
}

}  // namespace coordd
