#include "client/coordrun/wire/agent_channel.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/coordrun/process/read_lines.h"
#include "common/base/status_macros.h"

namespace coordd {

absl::Status AgentChannel::Open() {
  COORDD_ASSIGN_OR_RETURN(
      ChildProcess process,
      ChildProcess::Start(
          {.command = request_.command, .environment = request_.environment, .input = true}));
  process_ = std::move(process);
  Write(request_.orders);
  return absl::OkStatus();
}

void AgentChannel::Write(absl::string_view line) {
  if (closing_) return;
  absl::StrAppend(&unwritten_, line, "\n");
  Flush();
}

void AgentChannel::Close() {
  closing_ = true;
  Flush();
}

void AgentChannel::Flush() {
  if (!process_) return;
  while (!unwritten_.empty() && process_->in().valid()) {
    const ssize_t n = write(process_->in().get(), unwritten_.data(), unwritten_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n < 0) {
      // It is gone; its end and what it said tell why.
      process_->in().Close();
      unwritten_.clear();
    } else {
      unwritten_.erase(0, static_cast<size_t>(n));
    }
  }
  if (closing_ && unwritten_.empty()) process_->in().Close();
}

void AgentChannel::Await(std::vector<pollfd>& fds) {
  const auto add = [&fds](int fd, short events) {
    fds.push_back({.fd = fd, .events = events, .revents = 0});
  };
  add(process_ && !end_ ? process_->pidfd() : -1, POLLIN);
  add(process_ ? process_->out().get() : -1, POLLIN);
  add(process_ ? process_->err().get() : -1, POLLIN);
  add(process_ && !unwritten_.empty() ? process_->in().get() : -1, POLLOUT);
}

void AgentChannel::Handle(absl::Span<const pollfd> fds, const Heard& heard) {
  if (!process_) return;
  const auto noise = [&](absl::string_view line) {
    noise_.Add(line);
    heard.noise(line);
  };
  // What it wrote before it ended comes first.
  if (fds[1].revents != 0) {
    ReadLines(process_->out(), out_lines_, [&](absl::string_view line) {
      if (!FrameReader::is_frame(line)) return noise(line);
      if (const auto frame = frames_.Feed(line)) heard.frame(*frame);
    });
  }
  if (fds[2].revents != 0) ReadLines(process_->err(), err_lines_, noise);
  if (fds[3].revents != 0) Flush();
  if (fds[0].revents != 0 && !end_) end_ = process_->Reap();
}

bool AgentChannel::drained() const {
  return !process_ || (!process_->out_open() && !process_->err_open());
}

void AgentChannel::Signal(int signal) const {
  if (process_ && !end_) process_->Signal(signal);
}

void AgentChannel::Kill() {
  if (!process_ || end_) return;
  process_->Signal(SIGKILL);
  for (int round = 0; round < 10 && !end_; ++round) {
    pollfd ended = {.fd = process_->pidfd(), .events = POLLIN, .revents = 0};
    poll(&ended, 1, 100);
    end_ = process_->Reap();
  }
}

}  // namespace coordd
