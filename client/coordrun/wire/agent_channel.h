// The way to one or more agents: a process such as ssh whose stdin and stdout are theirs. (io)
#pragma once

#include <poll.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/coordrun/process/child_process.h"
#include "client/coordrun/process/line_splitter.h"
#include "client/coordrun/wire/agent_messages.h"
#include "client/coordrun/wire/frame.h"
#include "common/base/environment.h"

namespace coordd {

struct ChannelRequest {
  std::string host;                  // for people: "node1"; empty: this machine
  bool shared = false;               // by agents of several hosts, which say where they are
  std::vector<std::string> command;  // ssh node1 ... coordrun --agent
  Environment environment;           // of that command
  std::string orders;                // the Line of AgentOrders
  std::vector<int32_t> workers;      // behind it
  size_t agents = 1;                 // behind it
};

// One owner, one thread.
class AgentChannel {
 public:
  struct Heard {
    std::function<void(const Frame&)> frame;
    // What is no frame: a login banner, ssh's own words.
    std::function<void(absl::string_view line)> noise;
  };

  explicit AgentChannel(ChannelRequest request) : request_(std::move(request)) {}

  // Starts the process and begins to write the orders.
  absl::Status Open();
  bool opened() const { return process_.has_value(); }
  // A line for the agents; written as they take it in. No more follows after Close.
  void Write(absl::string_view line);
  void Close();

  // Four entries, also before Open and after the end.
  void Await(std::vector<pollfd>& fds);
  void Handle(absl::Span<const pollfd> fds, const Heard& heard);
  static constexpr size_t kEntries = 4;

  const ChannelRequest& request() const { return request_; }
  // When the process has ended.
  const std::optional<ProcessEnd>& end() const { return end_; }
  bool drained() const;
  // Whether the process has ended and all frames have been heard. (Somebody else may hold its
  // stderr open: ssh's control master.)
  bool over() const { return end_.has_value() && !process_->out_open(); }
  // The last lines of noise, for the account of a failure.
  const TailLines& noise() const { return noise_; }
  void Kill();
  void Signal(int signal) const;

 private:
  void Flush();

  const ChannelRequest request_;
  std::optional<ChildProcess> process_;
  std::optional<ProcessEnd> end_;
  std::string unwritten_;
  bool closing_ = false;
  LineSplitter out_lines_, err_lines_;
  FrameReader frames_;
  static constexpr size_t kNoiseLines = 8;
  TailLines noise_{kNoiseLines};
};

}  // namespace coordd
