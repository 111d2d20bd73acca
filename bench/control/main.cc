// coordd-bench: what coordinating costs. Measures; passes no judgement.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/collectives/flags.h"
#include "bench/control/echo_server.h"
#include "bench/control/job_start.h"
#include "bench/control/process_start.h"
#include "bench/control/rounds.h"
#include "bench/control/state_rounds.h"
#include "bench/recovery/flags.h"
#include "common/base/usage_failure.h"

namespace coordd::bench {
namespace {

constexpr char kDescription[] =
    R"(coordd-bench: what coordinating costs, on this machine.

  coordd-bench rendezvous --ranks 8                    real processes, from their start to their first barrier
  coordd-bench control --rendezvous --nodes 1250 --ranks-per-node 8
  coordd-bench control --negotiate --ranks 2           a tensor that nobody has seen
  coordd-bench control --cached --nodes 1024 --channels 16
  coordd-bench control --cached --nodes 64,256,1024    ... and how it grows
  coordd-bench control --idle --ranks 1024
  coordd-bench control --state --ranks 64,27648,98304  coordd's decisions alone
  coordd-bench collectives --ranks 2 --transport mapped  real processes: collectives on host memory (bench/peers compares)
  coordd-bench collectives --device cuda --ranks 2     the same on GPUs, with NCCL's bare time beside ours
  coordd-bench recovery --workers 4 --kills 100        real processes, of which one is killed, a fresh job each time
  coordd-bench recovery --workers 4 --kills 100 --victim coordd   one job, under which coordd is killed once a second
  coordd-bench recovery --victim coordd-writing --kills 5000 --planted 50   what it has announced is stored
  coordd-bench recovery --workers 4 --victim stopped   SIGSTOP, until the others have gone on, then SIGCONT
  coordd-bench recovery --workers 4 --victim newcomer   how long members pause when one more joins
  coordd-bench recovery --workers 4 --victim nobody --seconds 600 --spinning 8   nobody may be taken for dead

Each starts a coordd of its own and ends it. Rounds take turns with rounds through a gRPC server that does nothing but hold as
many streams ("bare"), so that ratios mean something on a busy machine too; absolute figures need a quiet one.
)";
constexpr int32_t kStateRounds = 5;

struct Flags {
  bool json = false;
  bool rendezvous = false, negotiate = false, cached = false, idle = false, state = false;
  std::vector<int32_t> nodes = {1}, ranks;
  int32_t ranks_per_node = 1;
  std::string node_sessions = "on";
  int32_t channels = 0;  // one for each node
  int32_t rounds = 0;    // what suits the measurement
  int32_t tensors = 0;
  int32_t groups = 0;
  std::string tls;
  double seconds = 10;
  int32_t echo_sessions = 1, echo_ready_fd = 3;
};

JobShape ShapeOf(const Flags& flags) {
  // --ranks N: on nodes of their own.
  if (!flags.ranks.empty()) return {.nodes = flags.ranks[0], .ranks_per_node = 1};
  return {.nodes = flags.nodes[0],
          .ranks_per_node = flags.ranks_per_node,
          .node_sessions = flags.ranks_per_node > 1 && flags.node_sessions == "on"};
}

int32_t ChannelsOf(const Flags& flags, const JobShape& shape) {
  return flags.channels > 0 ? std::min(flags.channels, shape.sessions()) : shape.nodes;
}

RoundOptions RoundsOf(const Flags& flags, int32_t rounds, int32_t tensors) {
  const JobShape shape = ShapeOf(flags);
  return {.shape = shape,
          .channels = ChannelsOf(flags, shape),
          .rounds = flags.rounds > 0 ? flags.rounds : rounds,
          .tensors = flags.tensors > 0 ? flags.tensors : tensors,
          .tls = flags.tls};
}

absl::StatusOr<nlohmann::json> MeasureControl(const Flags& flags) {
  const JobShape shape = ShapeOf(flags);
  if (flags.rendezvous)
    return MeasureRendezvous({.shape = shape,
                              .channels = ChannelsOf(flags, shape),
                              .groups = flags.groups,
                              .tls = flags.tls});
  if (flags.idle) {
    return MeasureIdle({.shape = shape,
                        .channels = ChannelsOf(flags, shape),
                        .idle = absl::Seconds(flags.seconds)});
  }
  if (flags.negotiate) return MeasureFirstSight(RoundsOf(flags, 1000, 1));
  if (flags.state) {
    return MeasureState({.ranks = flags.ranks,
                         .ranks_per_node = std::max(flags.ranks_per_node, 1),
                         .rounds = flags.rounds > 0 ? flags.rounds : kStateRounds,
                         .tensors = flags.tensors > 0 ? flags.tensors : 64});
  }
  const RoundOptions rounds = RoundsOf(flags, 200, 64);
  const std::vector<int32_t>& sizes = flags.ranks.empty() ? flags.nodes : flags.ranks;
  return sizes.size() > 1 ? MeasureGrowth(rounds, flags.channels, sizes) : MeasureRepeated(rounds);
}

void AddControl(CLI::App& app, Flags& flags) {
  CLI::App* control = app.add_subcommand("control", "Simulated workers and a real coordd");
  const auto what = [&](const char* name, bool& flag, const char* help) {
    control->add_flag(name, flag, help)->group("What to measure (one of them)");
  };
  what("--rendezvous", flags.rendezvous, "All join: from the last Join to the last Membership");
  what("--negotiate", flags.negotiate, "First sight of a tensor: last report to last plan");
  what("--cached", flags.cached, "Tensors that are known: a whole round, beside a bare one");
  what("--idle", flags.idle, "Heartbeats only: CPU and memory");
  what("--state", flags.state, "The state machine alone, without gRPC");
  auto* nodes = control->add_option("--nodes", flags.nodes, "Nodes; several numbers: how it grows");
  auto* ranks = control->add_option("--ranks", flags.ranks, "Instead: ranks on nodes of their own");
  for (CLI::Option* list : {nodes, ranks})
    list->delimiter(',')->check(CLI::Range(1, 131072))->type_name("N[,N...]");
  nodes->excludes(ranks);
  control->add_option("--ranks-per-node", flags.ranks_per_node, "Ranks of each node")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  control
      ->add_option("--node-sessions", flags.node_sessions,
                   "Whether the ranks of a node, if it has several, share a session")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  control->add_option("--channels", flags.channels, "Connections (default: one for each node)")
      ->check(AboveZero());
  control
      ->add_option("--rounds", flags.rounds,
                   "Rounds of each side (default: 200; --negotiate 1000, --state 5)")
      ->check(AboveZero());
  control
      ->add_option("--tensors", flags.tensors,
                   "Tensors that a rank reports in a round (default: 64; --negotiate 1)")
      ->check(AboveZero());
  control
      ->add_option("--groups", flags.groups, "--rendezvous: process sets that each rank then makes")
      ->check(CLI::Range(0, 64));
  control
      ->add_option("--tls", flags.tls,
                   "--cached, --negotiate, --rendezvous: the job speaks TLS, with what `coordctl "
                   "certs DIR` has made; bare rounds do not")
      ->check(CLI::ExistingDirectory)
      ->type_name("DIR");
  control->add_option("--seconds", flags.seconds, "--idle: how long to watch")
      ->check(AboveZero())
      ->capture_default_str();
}

void AddOthers(CLI::App& app, Flags& flags) {
  CLI::App* rendezvous = app.add_subcommand(
      "rendezvous", "Real processes: from their start to the end of their first barrier");
  rendezvous->add_option("--ranks", flags.ranks, "How many")
      ->required()
      ->expected(1)
      ->check(CLI::Range(1, 1024));
  rendezvous->add_option("--rounds", flags.rounds, "Launches of each kind (default: 7)")
      ->check(AboveZero());
  CLI::App* echo = app.add_subcommand("echo-server", "The yardstick; started by the others");
  echo->group("");
  echo->add_option("--sessions", flags.echo_sessions);
  echo->add_option("--ready-fd", flags.echo_ready_fd);
}

// nullptr: nothing.
const char* WhatIsWrong(const CLI::App& app, const Flags& flags) {
  if (!app.got_subcommand("control")) return nullptr;
  const int what = int{flags.rendezvous} + int{flags.negotiate} + int{flags.cached} +
                   int{flags.idle} + int{flags.state};
  if (what != 1)
    return "control measures one of --rendezvous, --negotiate, --cached, --idle, --state";
  if (flags.state && flags.ranks.empty()) return "--state needs --ranks N[,N...]";
  return nullptr;
}

void Print(const nlohmann::json& result, bool json) {
  if (!json) {
    for (const auto& [name, value] : result.items())
      if (!value.is_array()) std::printf("%-32s %s\n", name.c_str(), value.dump().c_str());
    for (const nlohmann::json& size : result.value("sizes", nlohmann::json::array())) {
      std::printf("\n");
      Print(size, false);
    }
    return;
  }
  std::printf("%s\n", result.dump().c_str());
}

// A connection each for thousands of sessions.
void RaiseFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

absl::StatusOr<nlohmann::json> Measure(const CLI::App& app, const Flags& flags,
                                       const RecoveryFlags& recovery) {
  if (app.got_subcommand("recovery")) return MeasureRecovery(recovery);
  if (app.got_subcommand("control")) return MeasureControl(flags);
  return MeasureProcesses({.ranks = flags.ranks[0], .rounds = flags.rounds > 0 ? flags.rounds : 7});
}

int Main(int argc, char** argv) {
  Flags flags;
  CollectivesFlags collectives;
  RecoveryFlags recovery;
  CLI::App app(kDescription, "coordd-bench");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_flag("--json", flags.json, "One JSON object on the last line");
  AddControl(app, flags);
  AddOthers(app, flags);
  AddCollectives(app, collectives);
  AddRecovery(app, recovery);
  app.failure_message(UsageFailure);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  RaiseFileLimit();
  if (app.got_subcommand("echo-server"))
    return RunEchoServer(flags.echo_sessions, flags.echo_ready_fd);
  if (app.got_subcommand("collectives")) return RunCollectives(collectives, flags.json);
  if (const char* wrong = WhatIsWrong(app, flags); wrong != nullptr) {
    std::fprintf(stderr, "coordd-bench: %s; see --help\n", wrong);
    return 2;
  }
  absl::StatusOr<nlohmann::json> result = Measure(app, flags, recovery);
  if (!result.ok()) {
    std::fprintf(stderr, "coordd-bench: %s\n", result.status().ToString().c_str());
    return 1;
  }
  Print(*result, flags.json);
  return 0;
}

}  // namespace
}  // namespace coordd::bench

int main(int argc, char** argv) { return coordd::bench::Main(argc, argv); }
