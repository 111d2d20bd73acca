// Workers as children of this process. (io)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/coordrun/coordinator/relay_process.h"
#include "client/coordrun/crews/crew.h"
#include "client/coordrun/process/child_process.h"
#include "client/coordrun/process/stream_splitter.h"
#include "common/base/environment.h"

namespace coordd {

// One process to start.
struct WorkerOrder {
  int32_t index = 0;
  Environment environment;
  bool has_input = false;  // this process's stdin is its own; else it has an empty one
};

class LocalCrew : public Crew {
 public:
  // `directory`: where they start; empty: here. `relay_directory`: where the socket of their relay
  // is; empty: they have none.
  LocalCrew(std::vector<std::string> command, std::string directory,
            std::vector<WorkerOrder> orders, std::string relay_directory = "");

  // After a failure some of them may run: KillAll.
  absl::Status Start(CrewEvents& events) override;
  absl::Status Restart(int32_t worker, CrewEvents& events) override;
  // Sets variables of the workers that are started from now on.
  void SetVariables(const Environment& variables);
  // Called before a worker is started again: what it and those that follow get besides.
  void OnRestart(std::function<Environment()> variables) { on_restart_ = std::move(variables); }
  void Await(std::vector<pollfd>& fds) override;
  void Handle(absl::Span<const pollfd> fds, absl::Time now, CrewEvents& events) override;
  absl::Time NextDeadline() const override;
  void Signal(int signal, absl::Time now) override;
  void SignalOne(int32_t worker, int signal) override;
  bool drained() const override;
  void KillAll() override;

 private:
  struct Worker {
    int32_t index;
    ChildProcess process;
    StreamSplitter out_pieces, err_pieces;
    int32_t start = 0;  // how often it had been started before
  };

  absl::StatusOr<Worker> StartOne(const WorkerOrder& order, int32_t start,
                                  CrewEvents& events) const;

  void BeginRelay(CrewEvents& events);
  void KeepRelay(bool ended, absl::Time now, CrewEvents& events);
  static void ReadLastWords(Worker& worker, absl::Time now, CrewEvents& events);

  // Constant after construction.
  const std::vector<std::string> command_;
  const std::string directory_;
  const std::string relay_directory_;

  std::function<Environment()> on_restart_;  // null: nothing
  std::vector<WorkerOrder> orders_;          // the relay's address comes to them
  std::vector<Worker> workers_;              // as orders_
  std::optional<RelayProcess> relay_;
};

}  // namespace coordd
