// coordd-worker: the worker runtime as a program of its own.
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/base/environment.h"
#include "common/base/log.h"
#include "common/base/refusal_line.h"
#include "common/base/standard_streams.h"
#include "common/base/thread.h"
#include "common/base/utf8.h"
#include "worker/api/worker.h"
#include "worker/program/allreduce_loop.h"
#include "worker/program/selftest.h"
#include "worker/program/worker_flags.h"

namespace {

using coordd::Clock;
using coordd::Worker;
using coordd::WorkerCommand;

// What a program that has been told to stop still waits for.
constexpr absl::Duration kGoodbye = absl::Seconds(5);

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Waits for SIGTERM or SIGINT on a thread of its own. Made before any other thread, so that all of
// them, gRPC's too, have these signals blocked. While the job gathers, a signal ends the program as
// it ends any other; then it says goodbye; a second one does not wait for that.
class StopWatch {
 public:
  StopWatch() {
    const sigset_t signals = StopSignals();
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    thread_ = coordd::StartThread("signals", [this] { Run(); });
  }
  ~StopWatch() {
    done_.store(true);
    pthread_kill(thread_.native_handle(), kWake);
    thread_.join();
  }
  // From now on a signal shuts `worker` down, which outlives this object.
  void Watch(Worker& worker) { worker_.store(&worker); }
  const std::atomic<bool>& stopped() const { return stopped_; }

 private:
  static constexpr int kWake = SIGUSR1;  // our threads have every signal blocked

  void Run() {
    const sigset_t signals = StopSignals();
    sigset_t awaited = signals;
    sigaddset(&awaited, kWake);
    int signal_number = 0;
    sigwait(&awaited, &signal_number);
    if (done_.load()) return;
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
    Worker* const worker = worker_.load();
    if (worker == nullptr) {
      raise(signal_number);
      return;
    }
    stopped_.store(true);
    worker->Shutdown(kGoodbye).IgnoreError();
    while (!done_.load()) sigwait(&awaited, &signal_number);
  }

  std::atomic<Worker*> worker_ = nullptr;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

nlohmann::json PlaceJson(const Worker& worker) {
  const coordd::Placement place = worker.placement();
  return {{"generation", ToInt(place.generation)},
          {"rank", place.rank},
          {"size", place.size},
          {"local_rank", place.local_rank},
          {"local_size", place.local_size},
          {"cross_rank", place.cross_rank},
          {"cross_size", place.cross_size},
          {"metrics", worker.metrics_address()}};
}

void PrintPlace(const Worker& worker, bool json) {
  if (json) {
    std::cout << PlaceJson(worker).dump() << std::endl;
    return;
  }
  const coordd::Placement place = worker.placement();
  const std::string metrics = worker.metrics_address();
  std::cout << "rank " << place.rank << " of " << place.size << " in generation "
            << ToInt(place.generation) << "; local rank " << place.local_rank << " of "
            << place.local_size << ", cross rank " << place.cross_rank << " of " << place.cross_size
            << (metrics.empty() ? "" : "; metrics at " + metrics) << std::endl;
}

std::string Text(absl::string_view text) { return std::string(text.data(), text.size()); }

int RunMember(Worker& worker, const StopWatch& watch, bool json) {
  PrintPlace(worker, json);
  const absl::Status ended = worker.AwaitEnd(absl::InfiniteFuture());
  if (watch.stopped().load()) return coordd::kExitOk;
  std::cerr << "coordd-worker: " << coordd::PrintableText(ended.message(), "\n\t") << std::endl;
  return coordd::kExitGenerationEnded;
}

int RunAllreduce(Worker& worker, const StopWatch& watch, const WorkerCommand& command) {
  const coordd::AllreduceLoopResult result =
      coordd::RunAllreduceLoop(worker, command.allreduce, Clock::Real(), watch.stopped());
  nlohmann::json line = PlaceJson(worker);
  line["iterations"] = result.iterations;
  line["wrong"] = result.wrong;
  line["seconds"] = result.seconds;
  line["code"] = absl::StatusCodeToString(result.status.code());
  line["error"] = Text(result.status.message());
  // Bytes that are not UTF-8 in a message must not end the program.
  std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  if (result.wrong > 0) return coordd::kExitCheckFailed;
  if (result.status.ok() || watch.stopped().load()) return coordd::kExitOk;
  return coordd::kExitGenerationEnded;
}

int RunSelftestOn(Worker& worker, const WorkerCommand& command) {
  const coordd::SelftestResult result = coordd::RunSelftest(worker, command.selftest, std::cout);
  if (result.ok()) return coordd::kExitOk;
  return worker.status().ok() ? coordd::kExitCheckFailed : coordd::kExitGenerationEnded;
}

}  // namespace

int main(int argc, char** argv) {
  coordd::OpenStandardStreams(argv);
  coordd::SetLogProgram("coordd-worker");
  coordd::ParsedFlags parsed = coordd::ParseWorkerFlags(argc, argv, coordd::ReadEnvironment());
  if (parsed.exit.has_value()) return *parsed.exit;
  const WorkerCommand& command = parsed.command;

  absl::StatusOr<std::unique_ptr<Worker>> worker = absl::CancelledError("not started");
  StopWatch watch;
  worker = Worker::Start(command.options);
  if (!worker.ok()) {
    std::cerr << coordd::RefusalLine("coordd-worker", worker.status().message()) << std::flush;
    return coordd::kExitCannotJoin;
  }
  watch.Watch(**worker);
  int exit_code = 0;
  switch (command.kind) {
    case WorkerCommand::Kind::kMember:
      exit_code = RunMember(**worker, watch, command.json);
      break;
    case WorkerCommand::Kind::kSelftest:
      exit_code = RunSelftestOn(**worker, command);
      break;
    case WorkerCommand::Kind::kAllreduce:
      exit_code = RunAllreduce(**worker, watch, command);
      break;
  }
  (*worker)->Shutdown(kGoodbye).IgnoreError();
  return exit_code;
}
