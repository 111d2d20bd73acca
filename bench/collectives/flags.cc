#include "bench/collectives/flags.h"

#include <cstdio>

#include "common/base/status_macros.h"
#include "common/base/usage_failure.h"

namespace coordd::bench {
namespace {

absl::Status Apply(CollectivesFlags& flags) {
  CollectivesPlan& plan = flags.options.plan;
  COORDD_ASSIGN_OR_RETURN(plan.operations, OperationsFrom(flags.ops));
  plan.out_of_place = flags.in_place != "1";
  plan.in_place = flags.in_place != "0";
  plan.registered = flags.buffers == "registered";
  plan.path = flags.path == "bare"        ? Path::kBare
              : flags.path == "scheduled" ? Path::kScheduled
                                          : Path::kNegotiated;
  flags.options.on_gpus = flags.device == "cuda";
  return CanBeMeasured(flags.options);
}

absl::Status Measure(const CollectivesFlags& flags, bool json) {
  if (json) {
    COORDD_ASSIGN_OR_RETURN(const nlohmann::json result, CollectivesAsJson(flags.options));
    std::printf("%s\n", result.dump().c_str());
    return absl::OkStatus();
  }
  std::printf("%s\n", flags.options.on_gpus ? kGpuColumns : kCollectivesColumns);
  return MeasureCollectives(flags.options, [](absl::string_view row) {
    std::printf("%.*s\n", static_cast<int>(row.size()), row.data());
    std::fflush(stdout);
  });
}

// Where the ranks are, and how they then do it.
void AddPlaces(CLI::App& command, CollectivesOptions& options) {
  command
      .add_option(
          "--nodes", options.nodes,
          "Nodes that the ranks take themselves to be on, as many on each: between them they "
          "use UCX, over whatever this machine has (bench/peers/run has real networks)")
      ->check(CLI::Range(1, kMaxBenchRanks))
      ->capture_default_str();
  command
      .add_option("--algorithm", options.algorithm,
                  "COORDD_HOST_ALGORITHM of the ranks: allreduces between nodes")
      ->check(CLI::IsMember({"auto", "flat", "hierarchical"}))
      ->capture_default_str();
}

// What operations find in the buffers, and where these lie.
void AddBuffers(CLI::App& command, CollectivesPlan& plan) {
  command.add_flag("--stale", plan.stale, "Buffers are left alone between operations");
  command
      .add_option("--offset", plan.offset,
                  "Bytes between a page's beginning and that of a private buffer: 16 as malloc "
                  "gives large ones to numpy")
      ->check(CLI::Range(0, 4092))
      ->capture_default_str();
}

}  // namespace

void AddCollectives(CLI::App& app, CollectivesFlags& flags) {
  CollectivesPlan& plan = flags.options.plan;
  CLI::App* command =
      app.add_subcommand("collectives", "Real processes on this machine: latency of collectives");
  command->add_option("--ranks", plan.ranks, "How many")
      ->check(CLI::Range(1, kMaxBenchRanks))
      ->capture_default_str();
  command->add_option("--cores", plan.cores, "Rank r is pinned to core r modulo this")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option(
      "--ops", flags.ops,
      "allreduce,allgather,broadcast,reduce_scatter,alltoall,barrier,reduce,gather (default: all)");
  command->add_option("--min", plan.bytes_min, "Smallest buffer, bytes")->capture_default_str();
  command->add_option("--max", plan.bytes_max, "Largest buffer, bytes; by factors of four")
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--in-place", flags.in_place, "0, 1 or both")
      ->check(CLI::IsMember({"0", "1", "both"}))
      ->capture_default_str();
  command->add_option("--buffers", flags.buffers, "private, or registered: memory of coordd_alloc")
      ->check(CLI::IsMember({"private", "registered"}))
      ->capture_default_str();
  command
      ->add_option("--path", flags.path,
                   "bare: calls of a comm; scheduled: one name again and again; negotiated: new "
                   "names")
      ->check(CLI::IsMember({"bare", "scheduled", "negotiated"}))
      ->capture_default_str();
  command
      ->add_option(
          "--device", flags.device,
          "host; or cuda: allreduce, allgather, broadcast and reduce_scatter on GPUs, beside "
          "the same calls of NCCL, with bars")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  command->add_flag(
      "--share-gpu", flags.options.share_gpu,
      "Ranks may use one GPU, each as on a host of its own: NCCL then uses sockets; with "
      "--gpu-algorithm hierarchical two of them on each");
  command
      ->add_option("--gpu-algorithm", flags.options.gpu_algorithm,
                   "With --device cuda: COORDD_GPU_ALGORITHM of the ranks")
      ->check(CLI::IsMember({"auto", "flat", "hierarchical"}))
      ->capture_default_str();
  command->add_option("--on-failure", flags.options.on_failure, "continue, raise or end")
      ->check(CLI::IsMember({"continue", "raise", "end"}))
      ->capture_default_str();
  command->add_option("--transport", flags.options.transport, "auto, mapped, shm, tcp or ucx")
      ->check(CLI::IsMember({"auto", "mapped", "shm", "tcp", "ucx"}))
      ->capture_default_str();
  AddPlaces(*command, flags.options);
  command->add_option("--timeline", flags.options.timeline,
                      "Rank 0 records every batch, and writes it into this file");
  command->add_option("--seconds", plan.seconds, "Of each cell and pass")
      ->check(AboveZero())
      ->capture_default_str();
  command->add_option("--repeats", flags.options.repeats, "Jobs, one behind the other")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--command", flags.options.command)->group("");  // bench/peers/run
  command->add_option("--peer", flags.options.peer)->group("");
  AddBuffers(*command, plan);
  command->add_flag("--csv", flags.csv, "One line for each cell; the default");
}

int RunCollectives(CollectivesFlags& flags, bool json) {
  absl::Status status = Apply(flags);
  const int wrong = status.ok() ? 1 : 2;
  if (status.ok()) status = Measure(flags, json);
  if (status.ok()) return 0;
  std::fprintf(stderr, "coordd-bench: %s\n", std::string(status.message()).c_str());
  return wrong;
}

}  // namespace coordd::bench
