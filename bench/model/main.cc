// coordd-model: which algorithm is the fastest between how many nodes, by a model of the network.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/model/sweep.h"
#include "common/base/status_macros.h"
#include "common/base/usage_failure.h"

namespace coordd::model {
namespace {

constexpr char kDescription[] =
    R"(coordd-model: how long collectives take between more nodes than there are here, by a model of their network.

  coordd-model --nodes 4,64,4096 --ops allreduce --bytes 1024,1048576,1073741824
  coordd-model --nodes 64,256,1024 --rack-nodes 32 --oversubscription 4            in racks that nobody knows of
  coordd-model --nodes 64,256,1024 --rack-nodes 32 --oversubscription 4 --labelled  ... COORDD_TOPOLOGY is set
  coordd-model --nodes 4 --alpha-us 900 --gap-us 3 --gbit 0.5 --bytes 65536         a network that was measured
  coordd-model --json > sweep.json; bench/model/plot sweep.json --out sweep.svg

Nothing is sent. The schedules are those that ranks execute (worker/algorithms), between nodes of one rank each, whole or cut into
slices; links are two numbers, --alpha-us for the start of a message and --gbit for its bytes, and a third for messages that
follow each other, --gap-us. Of each way it says the time of the last rank in microseconds, marks the fastest (*), and says what
coordd would take by its table (algorithm_table.cc) and how many times as long that takes. Where it is exact and where not:
docs/design/between_nodes.md.
)";

struct Flags {
  Sweep sweep;
  std::vector<std::string> ops = {"allreduce", "allgather", "reduce_scatter", "broadcast"};
  bool json = false;
};

void AddFlags(CLI::App& app, Flags& flags) {
  Sweep& sweep = flags.sweep;
  sweep.nodes = {4, 16, 64, 256, 1024, 4096};
  for (int64_t bytes = 1024; bytes <= int64_t{1} << 30; bytes *= 4) sweep.bytes.push_back(bytes);
  app.add_option("--ops", flags.ops,
                 "allreduce, allgather, reduce_scatter, broadcast, alltoall (default: the first 4)")
      ->delimiter(',')
      ->type_name("OP[,OP...]");
  app.add_option("--nodes", sweep.nodes, "How many (default: 4 to 4096 by factors of four)")
      ->delimiter(',')
      ->check(CLI::Range(2, 65536))
      ->type_name("N[,N...]");
  app.add_option("--bytes", sweep.bytes,
                 "Of the whole vector, all blocks together (default: 1 KiB to 1 GiB by factors of "
                 "four)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 40))
      ->type_name("N[,N...]");
  Network& network = sweep.network;
  const auto number = [&](const char* name, double& value, const char* help) {
    app.add_option(name, value, help)->check(CLI::NonNegativeNumber)->capture_default_str();
  };
  number("--alpha-us", network.alpha_us, "From a send to the first byte's arrival, microseconds");
  number("--gap-us", network.gap_us, "... of which the sender can begin no other message");
  number("--gbit", network.gbit, "Of each node's port, each way");
  number("--reduce-gbyte", network.reduce_gbyte,
         "GB/s that a node combines, while the next segment arrives; 0: at once");
  app.add_option("--rack-nodes", sweep.rack_nodes, "Nodes of each rack (default: no racks)")
      ->check(CLI::Range(2, 4096));
  number("--oversubscription", network.oversubscription,
         "How many times as fast as its uplink a rack's ports are together");
  app.add_flag("--labelled", sweep.labelled, "The ranks know their racks (COORDD_TOPOLOGY)");
  app.add_flag("--json", flags.json, "One JSON object: the network, and a cell for each question");
}

// nullptr: nothing.
const char* WhatIsWrong(const Sweep& sweep) {
  if (sweep.network.gbit <= 0 || sweep.network.oversubscription <= 0)
    return "--gbit and --oversubscription are above 0";
  if (sweep.network.gap_us > sweep.network.alpha_us) return "--gap-us is at most --alpha-us";
  for (const int32_t nodes : sweep.nodes) {
    if (sweep.rack_nodes > 0 && nodes > sweep.rack_nodes && nodes % sweep.rack_nodes != 0)
      return "--nodes are whole racks of --rack-nodes, or fewer than one";
  }
  return nullptr;
}

void PrintCell(const nlohmann::json& cell) {
  std::printf("%-14s %5d nodes %11lld bytes  takes %s: %.1f us, %.2f of the best\n",
              cell["op"].get<std::string>().c_str(), cell["nodes"].get<int>(),
              cell["bytes"].get<long long>(), cell["chosen"].get<std::string>().c_str(),
              cell["chosen_us"].get<double>(), cell["slower"].get<double>());
  for (const auto& [name, us] : cell["us"].items()) {
    std::printf("  %c %-28s %14.1f us\n", name == cell["best"] ? '*' : ' ', name.c_str(),
                us.get<double>());
  }
}

absl::Status Run(const Flags& flags) {
  const Sweep& sweep = flags.sweep;
  nlohmann::json cells = nlohmann::json::array();
  for (const CollectiveKind kind : sweep.kinds) {
    for (const int32_t nodes : sweep.nodes) {
      for (const int64_t bytes : sweep.bytes) {
        COORDD_ASSIGN_OR_RETURN(nlohmann::json cell, Cell(sweep, kind, nodes, bytes));
        if (!flags.json) PrintCell(cell);
        if (flags.json) cells.push_back(std::move(cell));
      }
    }
  }
  if (!flags.json) return absl::OkStatus();
  const Network& network = sweep.network;
  const nlohmann::json all = {
      {"alpha_us", network.alpha_us},   {"gap_us", network.gap_us},
      {"gbit", network.gbit},           {"reduce_gbyte", network.reduce_gbyte},
      {"rack_nodes", sweep.rack_nodes}, {"oversubscription", network.oversubscription},
      {"labelled", sweep.labelled},     {"cells", cells}};
  std::printf("%s\n", all.dump().c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app(kDescription, "coordd-model");
  AddFlags(app, flags);
  app.failure_message(UsageFailure);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  absl::StatusOr<std::vector<CollectiveKind>> kinds = KindsFrom(flags.ops);
  const char* wrong = WhatIsWrong(flags.sweep);
  if (!kinds.ok() || wrong != nullptr) {
    const std::string said(kinds.ok() ? wrong : kinds.status().message());
    std::fprintf(stderr, "coordd-model: %s; see --help\n", said.c_str());
    return 2;
  }
  flags.sweep.kinds = *std::move(kinds);
  if (const absl::Status status = Run(flags); !status.ok()) {
    std::fprintf(stderr, "coordd-model: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace coordd::model

int main(int argc, char** argv) { return coordd::model::Main(argc, argv); }
