#include "bench/control/rounds.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "bench/control/echo_crowd.h"
#include "bench/control/server_process.h"
#include "bench/control/simulated_job.h"
#include "bench/control/statistics.h"
#include "common/base/status_macros.h"

namespace coordd::bench {
namespace {

constexpr int32_t kWarmupRounds = 20;
constexpr int32_t kBlocks = 10;  // turns that each side has

using Round = std::function<absl::StatusOr<absl::Duration>()>;

// What one side's rounds have cost.
struct RoundSeries {
  std::vector<double> us;
  absl::Duration server_cpu;

  double CpuUsPerRound() const {
    return us.empty() ? 0 : absl::ToDoubleMicroseconds(server_cpu) / static_cast<double>(us.size());
  }
};

absl::Status AddRounds(const Round& round, const ServerProcess& server, int32_t rounds,
                       RoundSeries& series) {
  const absl::Duration before = server.CpuTime();
  for (int32_t i = 0; i < rounds; ++i) {
    COORDD_ASSIGN_OR_RETURN(const absl::Duration time, round());
    series.us.push_back(absl::ToDoubleMicroseconds(time));
  }
  series.server_cpu += server.CpuTime() - before;
  return absl::OkStatus();
}

// While a round is measured nothing else is said: no heartbeat, and nobody is lost without one.
std::vector<std::string> QuietFlags() {
  return {"--lease",         "1h",  "--heartbeat-interval", "10m",
          "--stall-warning", "10m", "--stall-abort",        "1h"};
}

void AddSeries(const std::string& prefix, const std::string& cpu_name, const RoundSeries& series,
               nlohmann::json& result) {
  result[prefix + "round_p50_us"] = Quantile(series.us, 0.5);
  result[prefix + "round_p99_us"] = Quantile(series.us, 0.99);
  result[cpu_name] = series.CpuUsPerRound();
}

// What is measured and its yardstick, both with all their sessions, and what their rounds have
// cost.
struct Sides {
  std::unique_ptr<ServerProcess> coordd;
  std::unique_ptr<SimulatedJob> job;
  std::unique_ptr<EchoCrowd> echo;
  RoundSeries ours, bare;
};

absl::StatusOr<Sides> StartSides(const RoundOptions& options) {
  Sides sides;
  COORDD_ASSIGN_OR_RETURN(sides.coordd, ServerProcess::StartCoordd(QuietFlags(), options.tls));
  sides.job =
      std::make_unique<SimulatedJob>(SimulatedJob::Options{.coordd = sides.coordd->address(),
                                                           .shape = options.shape,
                                                           .channels = options.channels,
                                                           .tls = options.tls});
  COORDD_ASSIGN_OR_RETURN(sides.echo, EchoCrowd::Start(options.shape.sessions(), options.channels));
  COORDD_RETURN_IF_ERROR(sides.job->Join().status());
  COORDD_RETURN_IF_ERROR(sides.echo->Open().status());
  return sides;
}

// Blocks of rounds of either side, in turn: what else the machine does meets both.
absl::Status TakeTurns(const RoundOptions& options, const Round& round, Sides& sides) {
  const Round bare = [&sides] { return sides.echo->Round(); };
  RoundSeries warmup;
  COORDD_RETURN_IF_ERROR(AddRounds(round, *sides.coordd, kWarmupRounds, warmup));
  COORDD_RETURN_IF_ERROR(AddRounds(bare, sides.echo->server(), kWarmupRounds, warmup));
  for (int32_t block = 0; block < kBlocks; ++block) {
    const int32_t rounds =
        options.rounds * (block + 1) / kBlocks - options.rounds * block / kBlocks;
    COORDD_RETURN_IF_ERROR(AddRounds(round, *sides.coordd, rounds, sides.ours));
    COORDD_RETURN_IF_ERROR(AddRounds(bare, sides.echo->server(), rounds, sides.bare));
  }
  return absl::OkStatus();
}

nlohmann::json Compare(const RoundOptions& options, const Sides& sides) {
  nlohmann::json result = {{"ranks", options.shape.ranks()},       {"nodes", options.shape.nodes},
                           {"sessions", options.shape.sessions()}, {"channels", options.channels},
                           {"tensors", options.tensors},           {"rounds", options.rounds}};
  AddSeries("", "coordd_cpu_us_per_round", sides.ours, result);
  AddSeries("bare_", "bare_cpu_us_per_round", sides.bare, result);
  result["time_ratio"] = Median(sides.ours.us) / Median(sides.bare.us);
  result["cpu_ratio"] = sides.ours.CpuUsPerRound() / sides.bare.CpuUsPerRound();
  return result;
}

}  // namespace

absl::StatusOr<nlohmann::json> MeasureRepeated(const RoundOptions& options) {
  COORDD_ASSIGN_OR_RETURN(Sides sides, StartSides(options));
  SimulatedJob& job = *sides.job;
  job.Prepare(options.tensors);
  const int64_t sent = job.messages_sent();
  COORDD_RETURN_IF_ERROR(TakeTurns(
      options, [&job] { return job.Round(); }, sides));
  nlohmann::json result = Compare(options, sides);
  result["gear"] = job.cached() ? "cached" : "negotiated";
  result["messages_per_step"] =
      static_cast<double>(job.messages_sent() - sent) / (options.rounds + kWarmupRounds);
  result["batches_per_step"] = job.batches();
  result["node_sessions"] = options.shape.node_sessions;
  return result;
}

absl::StatusOr<nlohmann::json> MeasureFirstSight(const RoundOptions& options) {
  COORDD_ASSIGN_OR_RETURN(Sides sides, StartSides(options));
  COORDD_RETURN_IF_ERROR(TakeTurns(
      options, [&] { return sides.job->FirstSight(options.tensors); }, sides));
  return Compare(options, sides);
}

absl::StatusOr<nlohmann::json> MeasureGrowth(const RoundOptions& options, int32_t channels_max,
                                             const std::vector<int32_t>& nodes) {
  std::vector<double> sizes, time, cpu, bare_time, bare_cpu;
  nlohmann::json result = {{"sizes", nlohmann::json::array()}};
  for (const int32_t count : nodes) {
    RoundOptions one = options;
    one.shape.nodes = count;
    one.channels = channels_max > 0 ? std::min(channels_max, one.shape.sessions()) : count;
    COORDD_ASSIGN_OR_RETURN(nlohmann::json size, MeasureRepeated(one));
    sizes.push_back(one.shape.ranks());
    time.push_back(size["round_p50_us"]);
    cpu.push_back(size["coordd_cpu_us_per_round"]);
    bare_time.push_back(size["bare_round_p50_us"]);
    bare_cpu.push_back(size["bare_cpu_us_per_round"]);
    result["sizes"].push_back(std::move(size));
  }
  result["exponent"] = Exponent(sizes, time);
  result["cpu_exponent"] = Exponent(sizes, cpu);
  result["bare_exponent"] = Exponent(sizes, bare_time);
  result["bare_cpu_exponent"] = Exponent(sizes, bare_cpu);
  return result;
}

}  // namespace coordd::bench
