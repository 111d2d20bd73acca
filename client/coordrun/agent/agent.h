// coordrun --agent: starts and guards the workers of one host for a coordrun elsewhere, from which
// it gets its orders on stdin and to which it speaks in frames on stdout. When stdin ends, so does
// everything that it has started: ssh closes it when the connection, or the other coordrun, is
// gone. (io)
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/coordrun/agent/agent_torch.h"
#include "client/coordrun/crews/crew.h"
#include "client/coordrun/crews/local_crew.h"
#include "client/coordrun/wire/agent_messages.h"
#include "client/coordrun/wire/frame.h"
#include "common/base/clock.h"
#include "common/base/environment.h"
#include "common/base/owned_fd.h"

namespace coordd {

// One thread: a poll loop.
class Agent : private CrewEvents {
 public:
  // `directory`: for its secrets; exists, and is removed by whoever has made it.
  Agent(std::string directory, Environment environment, Clock& clock);

  // Until the workers have ended, or stdin has. The exit status: 0 unless it could not do its part.
  int Run();

 private:
  void WorkerStarted(int32_t worker, const std::string& host, pid_t pid,
                     const std::string& launch) override;
  void WorkerSaid(int32_t worker, Stream stream, const OutputPiece& piece) override;
  void WorkerEnded(int32_t worker, const ProcessEnd& end) override;
  void Notice(absl::string_view sentence) override;

  void Turn(absl::Time until);
  void ReadOrders();
  void Obey(absl::string_view line);
  void ObeyWithCrew(const AgentOrder& order);
  void TakeOrders(absl::string_view line);
  // Which workers are ours, and where we are; a sentence when the environment does not tell.
  absl::Status FindOurselves();
  absl::Status WriteFiles();
  absl::Status CheckHost();
  void StartWorkers();
  void RestartWorker(int32_t worker);
  void TellCannotRun(const absl::Status& why, int32_t worker);  // -1: any of them
  Environment EnvironmentOf(const v1::OrderedWorker& worker) const;
  void Tell(const AgentMessage& message);
  void Send(const Frame& frame);

  // Constant after construction.
  const std::string directory_;
  const Environment environment_;
  Clock& clock_;

  OwnedFd signals_;
  std::string unread_;
  AgentOrders orders_;
  AgentReport report_;
  Environment files_;  // variables that name them
  AgentTorch torch_;
  std::unique_ptr<LocalCrew> crew_;
  size_t alive_ = 0;
  bool ordered_ = false, started_ = false;
  bool ended_ = false;  // stdin, or whoever reads our stdout
  bool failed_ = false;
};

// The whole of coordrun --agent.
int RunAgent(const Environment& environment, Clock& clock);

}  // namespace coordd
