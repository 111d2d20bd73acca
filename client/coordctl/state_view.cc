#include "client/coordctl/state_view.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/coordctl/edge_view.h"
#include "client/coordctl/gpu_view.h"
#include "common/base/counted.h"
#include "common/protocol/rank_runs.h"

namespace coordd {
namespace {

absl::string_view Name(v1::JobPhase phase) {
  switch (phase) {
    case v1::JOB_PHASE_GATHERING:
      return "gathering";
    case v1::JOB_PHASE_RUNNING:
      return "running";
    case v1::JOB_PHASE_BROKEN:
      return "broken";
    case v1::JOB_PHASE_ENDED:
      return "ended";
    default:
      return "unknown";
  }
}

absl::string_view Name(v1::DepartureCause cause) {
  switch (cause) {
    case v1::DEPARTURE_CAUSE_LEFT:
      return "left";
    case v1::DEPARTURE_CAUSE_CONNECTION_LOST:
      return "was lost";
    case v1::DEPARTURE_CAUSE_LEASE_EXPIRED:
      return "was silent for longer than its lease";
    case v1::DEPARTURE_CAUSE_EVICTED:
      return "was evicted";
    case v1::DEPARTURE_CAUSE_FAILED:
    case v1::DEPARTURE_CAUSE_PROGRAM_FAILED:
      return "failed";
    case v1::DEPARTURE_CAUSE_PROTOCOL_ERROR:
      return "broke the protocol";
    case v1::DEPARTURE_CAUSE_DRAINED:
      return "was drained";
    default:
      return "is gone";
  }
}

// "0, 1, 5" and how many more there are than `ranks` lists.
template <typename Ranks>
std::string RanksText(const Ranks& ranks, int64_t total) {
  std::string text = ranks.empty() ? "none" : absl::StrJoin(ranks, ", ");
  if (total > ranks.size()) absl::StrAppend(&text, " and ", total - ranks.size(), " more");
  return text;
}

std::string LimitsText(const v1::JobState& job) {
  return job.max_workers() > 0
             ? absl::StrCat("min ", job.min_workers(), ", max ", job.max_workers())
             : absl::StrCat("min ", job.min_workers());
}

std::string LagText(double seconds) {
  if (seconds < 0.0001) return absl::StrFormat("%.0f us", 1e6 * seconds);
  if (seconds < 0.1) return absl::StrFormat("%.1f ms", 1e3 * seconds);
  return DurationText(seconds);
}

void AppendSlowest(const v1::JobState& job, std::string* out) {
  for (const v1::WorkerState& worker : job.workers()) {
    // A coordd that does not tell says 0.
    if (worker.rank() != job.slowest_rank() || worker.arrival_lag_seconds() <= 0) continue;
    absl::StrAppend(out, "  slowest: rank ", worker.rank(), " (host ", worker.hostname(), ", pid ",
                    worker.pid(), ") comes ", LagText(worker.arrival_lag_seconds()),
                    " after the first rank; the others wait for it\n");
    return;
  }
}

void AppendJobHead(const v1::JobState& job, std::string* out) {
  absl::StrAppend(out, "job ", job.name(), ": ", Name(job.phase()), " for ",
                  DurationText(job.seconds_in_phase()));
  const bool ended = job.phase() == v1::JOB_PHASE_ENDED;
  if (job.generation() > 0 && ended) absl::StrAppend(out, ", after generation ", job.generation());
  if (job.generation() > 0 && !ended) {
    absl::StrAppend(out, ", generation ", job.generation(), " of ", job.size(),
                    job.size() == 1 ? " rank" : " ranks");
  }
  absl::StrAppend(out, ", ", job.joined(), " connected (", LimitsText(job), ")\n");
  if (job.generation() == 0) return;
  if (ended) {
    // What is counted for a generation is gone with it.
    absl::StrAppend(out, "  executed ", job.batches_total(),
                    job.batches_total() == 1 ? " batch, " : " batches, ",
                    BytesText(static_cast<double>(job.bytes_total())), " a rank in all\n");
    return;
  }
  absl::StrAppend(out, "  planned ", Counted(job.batches_planned(), "batch", "batches"), ", ",
                  Counted(job.tensors_planned(), "tensor"), ", ",
                  BytesText(static_cast<double>(job.bytes_planned())), " a rank; now ",
                  BytesText(job.bytes_per_second()), "/s, ",
                  Counted(job.pending_tensors(), "tensor"), " waiting for other ranks\n");
  if (job.schedules() > 0) {
    absl::StrAppend(out, "  ", job.schedules(), job.schedules() == 1 ? " schedule" : " schedules",
                    " in force: ranks execute what repeats without asking; ",
                    BytesText(static_cast<double>(job.bytes_total())), " a rank so far\n");
  }
  if (job.process_sets() + job.pairs() > 0) {
    absl::StrAppend(out, "  process sets: ", job.process_sets(), ", and ",
                    Counted(job.pairs(), "pair"), " for send and receive\n");
  }
  if (job.joined_count() > 0) {
    absl::StrAppend(out,
                    "  joined, with no more data: ", job.joined_count() == 1 ? "rank " : "ranks ",
                    RanksText(job.joined_ranks(), job.joined_count()), "\n");
  }
  AppendSlowest(job, out);
}

// "1 GPU-8f3c0a12": the index in the process and the beginning of the UUID.
std::string GpuText(const v1::WorkerState& worker) {
  if (!worker.device_use().has_device()) return "-";
  const v1::Device& device = worker.device_use().device();
  // As nvidia-smi shows it, where NVML is there: a slice has a name of its own.
  const std::string& uuid =
      worker.gpu_health().uuid().empty() ? device.uuid() : worker.gpu_health().uuid();
  return absl::StrCat(device.index(), " ", uuid.substr(0, sizeof("GPU-8f3c0a12") - 1));
}

// Which columns there are beside those that always are, and how wide.
struct Columns {
  bool gpu = false;
  int edges = 0;  // characters; 0: none

  std::string Text(absl::string_view gpu_text, absl::string_view edges_text) const {
    return absl::StrCat(gpu ? absl::StrFormat("%-16s ", gpu_text) : "",
                        edges > 0 ? absl::StrFormat("%-*s ", edges, edges_text) : "");
  }
};

Columns ColumnsOf(const std::vector<const v1::WorkerState*>& workers) {
  Columns columns;
  for (const v1::WorkerState* worker : workers) {
    columns.gpu |= worker->device_use().has_device();
    const std::string edges = EdgeText(*worker);
    if (edges != "-") columns.edges = std::max({columns.edges, 5, static_cast<int>(edges.size())});
  }
  return columns;
}

void AppendWorker(const v1::WorkerState& worker, const Columns& columns, std::string* out) {
  const bool placed = worker.rank() >= 0;
  absl::StrAppendFormat(
      out, "    %5s %5s %8d %10d %11s %8s %8s  %s%s\n", placed ? absl::StrCat(worker.rank()) : "-",
      placed ? absl::StrCat(worker.local_rank()) : "-", worker.pid(),
      worker.collectives_completed(), BytesText(static_cast<double>(worker.bytes_reduced())),
      LagText(worker.arrival_lag_seconds()), DurationText(worker.seconds_since_heard()),
      columns.Text(GpuText(worker), EdgeText(worker)),
      worker.activity().empty() ? "-" : worker.activity());
}

std::string PathText(const v1::TensorPath& path) {
  if (path.refused()) return absl::StrCat("refused: ", path.why_not());
  if (!path.nccl()) return absl::StrCat("through pinned host memory, since ", path.why_not());
  std::string text = "by NCCL";
  const char* separator = "; ";
  for (const auto& [where, over] : {std::pair("in a node: ", path.within_node()),
                                    std::pair("between nodes: ", path.between_nodes())}) {
    if (!over.empty()) absl::StrAppend(&text, separator, where, over);
  }
  if (path.hierarchical())
    absl::StrAppend(&text, separator, "allreduces hierarchical: between nodes by the host");
  if (!path.why_flat().empty())
    absl::StrAppend(&text, separator, "allreduces flat, since ", path.why_flat());
  return text;
}

// What is equal on most ranks.
std::string DeviceUseText(const v1::DeviceUse& use) {
  std::string text = use.device().model().empty() ? "a GPU" : use.device().model();
  if (!use.sharing().empty()) absl::StrAppend(&text, " (a part: ", use.sharing(), ")");
  if (!use.nccl().empty()) absl::StrAppend(&text, ", NCCL ", use.nccl());
  if (!use.no_nccl().empty()) absl::StrAppend(&text, ", no NCCL: ", use.no_nccl());
  absl::StrAppend(&text, "\n");
  if (use.paths().empty() && !use.no_nccl().empty())
    absl::StrAppend(&text, "    tensors: through pinned host memory\n");
  for (const v1::TensorPath& path : use.paths()) {
    absl::StrAppend(
        &text, "    tensors",
        path.process_set() == 0 ? "" : absl::StrCat(" of process set ", path.process_set()), ": ",
        PathText(path), "\n");
  }
  if (use.more_paths() > 0)
    absl::StrAppend(&text, "    and of ", use.more_paths(), " more process sets\n");
  return text;
}

void AppendWorkers(const v1::JobState& job, std::string* out) {
  // By node, in the order of their first rank; those that wait for a generation come last.
  std::vector<const v1::WorkerState*> workers;
  for (const v1::WorkerState& worker : job.workers()) workers.push_back(&worker);
  const auto place = [](const v1::WorkerState* w) { return w->rank() < 0 ? INT32_MAX : w->rank(); };
  std::stable_sort(workers.begin(), workers.end(),
                   [&](const auto* a, const auto* b) { return place(a) < place(b); });
  std::map<std::string, int> count;
  for (const v1::WorkerState* worker : workers) ++count[worker->node_id()];
  const Columns columns = ColumnsOf(workers);
  if (!workers.empty()) {
    absl::StrAppendFormat(out, "    %5s %5s %8s %10s %11s %8s %8s  %s%s\n", "rank", "local", "pid",
                          "completed", "reduced", "late", "heard", columns.Text("gpu", "edges"),
                          "doing");
  }
  const std::string* node = nullptr;
  for (const v1::WorkerState* worker : workers) {
    if (node == nullptr || *node != worker->node_id()) {
      node = &worker->node_id();
      const int ranks = count[*node];
      absl::StrAppend(out, "  node ", worker->hostname(), " (", ranks,
                      ranks == 1 ? " worker)\n" : " workers)\n");
    }
    AppendWorker(*worker, columns, out);
  }
}

// By reason, a line; nothing where nobody was refused.
std::string RefusedText(const v1::Connections& connections) {
  const std::map<std::string, int64_t> refused(connections.refused().begin(),
                                               connections.refused().end());
  int64_t all = 0;
  for (const auto& [why, count] : refused) all += count;
  if (all == 0) return "";
  return absl::StrCat("connections refused since it was started: ", all, " (",
                      absl::StrJoin(refused, ", ", absl::PairFormatter(" ")), ")\n");
}

}  // namespace

std::string DurationText(double seconds) {
  if (seconds < 10) return absl::StrFormat("%.1f s", std::max(seconds, 0.0));
  if (seconds < 120) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 7200) return absl::StrFormat("%.0f min", seconds / 60);
  if (seconds < 172800) return absl::StrFormat("%.1f h", seconds / 3600);
  return absl::StrFormat("%.1f d", seconds / 86400);
}

std::string BytesText(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string DepartureText(const v1::Departure& departure) {
  // The detail is a predicate that tells the cause, too. Whoever was no member yet has no rank.
  const std::string who =
      departure.rank() < 0 ? "a worker" : absl::StrCat("rank ", departure.rank());
  return absl::StrCat(who, " (host ", departure.hostname(), ", pid ", departure.pid(), ") ",
                      departure.detail().empty() ? Name(departure.cause()) : departure.detail());
}

std::string StallText(const v1::StalledTensor& stall) {
  const std::string set =
      stall.process_set() == 0 ? "" : absl::StrCat(" (process set ", stall.process_set(), ")");
  const std::string begin =
      absl::StrCat("stalled for ", DurationText(stall.waiting_seconds()), ": ", stall.name(), set);
  if (!stall.on_devices().empty()) return absl::StrCat(begin, ": ", stall.on_devices());
  return absl::StrCat(begin, "; ranks in: ", RanksText(stall.ready_ranks(), stall.ready_count()),
                      "; ranks missing: ", RanksText(stall.missing_ranks(), stall.missing_count()));
}

std::string StallsText(const v1::ServerState& state) {
  std::vector<std::string> texts;
  for (const v1::JobState& job : state.jobs())
    for (const v1::StalledTensor& stall : job.stalled()) texts.push_back(StallText(stall));
  return absl::StrJoin(texts, "; ");
}

std::string DevicesText(const v1::JobState& job) {
  std::map<std::string, std::vector<int32_t>> by_use;
  for (const v1::WorkerState& worker : job.workers()) {
    if (worker.has_device_use() && worker.rank() >= 0)
      by_use[DeviceUseText(worker.device_use())].push_back(worker.rank());
  }
  std::vector<std::pair<std::vector<int32_t>, std::string>> groups;
  for (auto& [use, ranks] : by_use) {
    std::sort(ranks.begin(), ranks.end());
    groups.emplace_back(std::move(ranks), use);
  }
  std::sort(groups.begin(), groups.end());
  std::string out;
  for (const auto& [ranks, use] : groups) {
    absl::StrAppend(&out, "  GPUs of ", ranks.size() == 1 ? "rank " : "ranks ", RankRunsText(ranks),
                    ": ", use);
  }
  return out;
}

std::string StacksText(const v1::JobState& job) {
  std::string out;
  for (const v1::WorkerState& worker : job.workers()) {
    if (worker.stack().empty()) continue;
    absl::StrAppend(&out, "  the others wait for rank ", worker.rank(), ", which is at\n");
    for (absl::string_view line : absl::StrSplit(worker.stack(), '\n'))
      absl::StrAppend(&out, "    ", line, "\n");
  }
  return out;
}

std::string StatusText(const v1::ServerState& state) {
  std::string out = absl::StrCat("coordd ", state.version(), " at ", state.listen(), ", up ",
                                 DurationText(state.uptime_seconds()));
  if (!state.http().empty())
    absl::StrAppend(&out, ", status page at ",
                    absl::StrContains(state.http(), "://") ? "" : "http://", state.http(), "/");
  if (!state.store().empty() && state.store() != "memory") {
    absl::StrAppend(&out, ", epoch ", state.epoch(), ", state in ", state.store());
  }
  if (state.node_sessions() > 0)
    absl::StrAppend(&out, ", ", Counted(state.node_sessions(), "node session"));
  if (state.has_connections())
    absl::StrAppend(&out, ", ", state.connections().open(), " of at most ",
                    state.connections().max(), " connections");
  absl::StrAppend(&out, "\n", RefusedText(state.connections()));
  if (!state.store_error().empty()) {
    absl::StrAppend(
        &out, "no new generation can form, since it cannot be stored: ", state.store_error(), "\n");
  }
  if (state.jobs().empty()) absl::StrAppend(&out, "no job\n");
  for (const v1::JobState& job : state.jobs()) {
    AppendJobHead(job, &out);
    AppendWorkers(job, &out);
    absl::StrAppend(&out, EdgesText(job), DevicesText(job), GpuHealthText(job));
    for (const v1::StalledTensor& stall : job.stalled()) {
      absl::StrAppend(&out, "  ", StallText(stall), "\n");
    }
    absl::StrAppend(&out, StacksText(job));
    for (const v1::Departure& departure : job.departures()) {
      absl::StrAppend(&out, "  ", DepartureText(departure), "\n");
    }
  }
  return out;
}

std::string JobsText(const v1::ServerState& state) {
  std::string out = absl::StrFormat("%-24s %-10s %10s %6s %9s %8s %11s\n", "JOB", "PHASE",
                                    "GENERATION", "RANKS", "CONNECTED", "STALLED", "BYTES/S");
  for (const v1::JobState& job : state.jobs()) {
    absl::StrAppendFormat(&out, "%-24s %-10s %10d %6d %9d %8d %11s\n", job.name(),
                          Name(job.phase()), job.generation(), job.size(), job.joined(),
                          job.stalled_size(), BytesText(job.bytes_per_second()));
  }
  return out;
}

std::string JobsJson(const v1::ServerState& state) {
  nlohmann::ordered_json jobs = nlohmann::ordered_json::array();
  for (const v1::JobState& job : state.jobs()) {
    jobs.push_back({{"name", job.name()},
                    {"phase", std::string(Name(job.phase()))},
                    {"generation", job.generation()},
                    {"size", job.size()},
                    {"joined", job.joined()},
                    {"stalled", job.stalled_size()},
                    {"bytes_per_second", job.bytes_per_second()},
                    {"seconds_in_phase", job.seconds_in_phase()}});
  }
  return jobs.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace coordd
