// Workers on other hosts, each host's under an agent (agent.h). Whether the agents are reached
// through ssh or srun is in the channels. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/coordrun/crews/crew.h"
#include "client/coordrun/wire/agent_channel.h"
#include "client/coordrun/wire/torch_roster.h"

namespace coordd {

struct AgentCrewOptions {
  std::vector<ChannelRequest> channels;
  // How many connections are being opened at a time; an answer makes room for the next.
  size_t parallel = 32;
  // A sentence about a channel that has ended before its agents answered.
  std::function<std::string(const ChannelRequest&, const ProcessEnd&,
                            const std::vector<std::string>& noise)>
      explain;
  std::string cannot_open;  // to be said besides when a channel cannot be opened; empty: nothing
  bool verbose = false;     // noise is told while it comes
  bool torch = false;       // workers get torch's variables
  int32_t np = 0;           // workers of the plan
  // The way to a worker that no channel leads to, or only one that has ended; null: there is none.
  std::function<ChannelRequest(int32_t worker)> channel_of = nullptr;
};

class AgentCrew : public Crew {
 public:
  explicit AgentCrew(AgentCrewOptions options);

  absl::Status Connect(absl::Time now) override;
  bool ready() const override;
  absl::Status failure() const override;
  std::string Missing() const override;
  bool SetAside(int32_t least, absl::string_view silence) override;
  std::vector<HostReport> reports() const override;

  absl::Status Start(CrewEvents& events) override;
  absl::Status Restart(int32_t worker, CrewEvents& events) override;
  void Release(int32_t worker) override;
  void Finish() override;
  void Await(std::vector<pollfd>& fds) override;
  void Handle(absl::Span<const pollfd> fds, absl::Time now, CrewEvents& events) override;
  absl::Time NextDeadline() const override { return cut_off_; }
  void Signal(int signal, absl::Time now) override;
  void SignalOne(int32_t worker, int signal) override;
  bool drained() const override;
  void KillAll() override;

 private:
  struct Host {
    explicit Host(ChannelRequest request)
        : channel(std::move(request)),
          alive(channel.request().workers.begin(), channel.request().workers.end()) {}
    AgentChannel channel;
    std::set<int32_t> alive;  // workers whose end is not known
    std::set<int32_t> released;
    size_t answered = 0;    // agents
    bool finished = false;  // told to end with its workers
    std::string problem;    // why it failed
    bool failed = false;
    int32_t agent = -1;  // its number, if it is one alone
    absl::Time asked;
  };

  // Through which the worker was started last; null: none.
  Host* HostOf(int32_t worker) const;
  // The members change: torch's store has to be elsewhere.
  void RenewMaster();
  absl::Status OpenTo(int32_t worker);
  void OpenMore(absl::Time now);
  void Take(Host& host, const Frame& frame, absl::Time now, CrewEvents& events);
  void TakeMessage(Host& host, int32_t agent, const AgentMessage& message, absl::Time now,
                   CrewEvents& events);
  void TakeCannotRun(Host& host, int32_t agent, const AgentMessage::CannotRun& cannot,
                     CrewEvents& events);
  // Where agent `number` behind this channel is.
  std::string Where(const Host& host, int32_t number) const;
  void TakeReport(Host& host, const AgentReport& report, absl::Time now);
  void TakeEnd(Host& host, CrewEvents& events);
  // Ends the workers of a host of whom nobody can hear any more.
  void EndWorkersOf(Host& host, CrewEvents& events);
  void Fail(Host& host, const std::string& sentence);
  size_t opening() const;

  // Constant after construction.
  const AgentCrewOptions options_;

  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<HostReport> reports_;
  TorchRoster torch_;
  std::vector<std::string> problems_;
  std::set<std::string> told_;  // problems of hosts that are tried again and again
  bool started_ = false;
  absl::Time cut_off_ = absl::InfiniteFuture();  // when connections are closed that do not react
};

}  // namespace coordd
