#include "client/coordctl/trace_report.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/coordctl/state_view.h"
#include "common/base/one_line.h"
#include "common/base/utf8.h"
#include "common/protocol/chrome_trace.h"
#include "common/protocol/tensor_spec.h"
#include "coordd/v1/trace.pb.h"

namespace coordd {
namespace {

// Below, who came last is a matter of microseconds that nobody waits for.
constexpr int64_t kLateMinNs = 100'000;
// Last in so many of a hundred is more than its turn.
constexpr int64_t kOftenPercent = 50;

struct RankBatches {
  std::vector<v1::TraceBatches> parts;
};
using BatchKey = std::pair<int32_t, int64_t>;  // lane, sequence
struct Shared {
  int ranks = 0;  // that have it
  int64_t took_longest = 0;
  int64_t exchange_shortest = std::numeric_limits<int64_t>::max();
  int32_t last_rank = -1;  // who spent least in it, and how much
  int64_t took_shortest = std::numeric_limits<int64_t>::max();
};

// From the moment at which its tensors were there: all end it together, so the difference between
// two ranks is how much later the one came.
int64_t Took(const v1::TraceBatch& batch) {
  return batch.queue_ns() + batch.pack_ns() + batch.exchange_ns();
}

bool NeedsAll(const v1::TraceBatch& batch) {
  return NeedsEveryRank(static_cast<CollectiveKind>(batch.kind()));
}

struct Trace {
  std::vector<RankBatches> ranks;  // as in the reply
  std::map<BatchKey, Shared> shared;
  int with_data = 0;
};

Trace Read(const v1::TraceReply& reply) {
  Trace trace;
  for (const v1::TraceRank& rank : reply.ranks()) {
    RankBatches& read = trace.ranks.emplace_back();
    bool any = false;
    for (const std::string& part : rank.batches()) {
      v1::TraceBatches batches;
      if (!batches.ParseFromString(part)) continue;  // of a newer version: as if it were missing
      for (const v1::TraceBatch& batch : batches.batches()) {
        any = true;
        Shared& shared = trace.shared[{batch.lane(), batch.sequence()}];
        const int64_t took = Took(batch);
        ++shared.ranks;
        shared.took_longest = std::max(shared.took_longest, took);
        shared.exchange_shortest = std::min(shared.exchange_shortest, batch.exchange_ns());
        if (took < shared.took_shortest) shared.last_rank = rank.rank();
        shared.took_shortest = std::min(shared.took_shortest, took);
      }
      read.parts.push_back(std::move(batches));
    }
    if (any) ++trace.with_data;
  }
  return trace;
}

int64_t WaitOf(const Trace& trace, const v1::TraceBatch& batch) {
  const Shared& shared = trace.shared.at({batch.lane(), batch.sequence()});
  if (!NeedsAll(batch) || shared.ranks < 2) return 0;
  return batch.exchange_ns() - shared.exchange_shortest;
}

// Which phases begin and end when; swept from the left.
class Sweep {
 public:
  void Add(TracePhase phase, int64_t from, int64_t to) {
    if (to <= from) return;
    edges_.push_back({from, phase, 1});
    edges_.push_back({to, phase, -1});
  }
  // The time in [from, to) by phase.
  std::array<int64_t, kTracePhases> Shares(int64_t from, int64_t to) {
    std::sort(edges_.begin(), edges_.end(),
              [](const Edge& a, const Edge& b) { return a.at < b.at; });
    std::array<int64_t, kTracePhases> shares = {};
    std::array<int, kTracePhases> active = {};
    int64_t at = from;
    const auto advance = [&](int64_t next) {
      next = std::clamp(next, from, to);
      if (next <= at) return;
      size_t phase = 0;
      while (phase + 1 < kTracePhases && active[phase] == 0) ++phase;
      shares[phase] += next - std::exchange(at, next);
    };
    for (const Edge& edge : edges_) {
      advance(edge.at);
      active[static_cast<size_t>(edge.phase)] += edge.change;
    }
    advance(to);
    return shares;
  }

 private:
  struct Edge {
    int64_t at;
    TracePhase phase;
    int change;
  };
  std::vector<Edge> edges_;
};

void AddPhases(const Trace& trace, const v1::TraceBatch& batch, Sweep& sweep) {
  const BatchPhases at(batch);
  const int64_t others_there =
      at.launched + std::clamp<int64_t>(WaitOf(trace, batch), 0, batch.exchange_ns());
  sweep.Add(TracePhase::kNegotiate, at.submitted, at.ready);
  sweep.Add(TracePhase::kQueue, at.ready, at.started);
  sweep.Add(TracePhase::kPack, at.started, at.launched);
  sweep.Add(TracePhase::kWait, at.launched, others_there);
  sweep.Add(TracePhase::kTransfer, others_there, at.ended);
  sweep.Add(TracePhase::kPack, at.ended, at.done);
}

void SumUpTimes(const Trace& trace, const RankBatches& read, RankSummary& summary) {
  Sweep sweep;
  std::vector<int64_t> steps;  // where they begin
  int64_t first = std::numeric_limits<int64_t>::max(), last = 0;
  for (const v1::TraceBatches& part : read.parts) {
    if (part.clock_error_ns() >= 0)
      summary.clock_error_us =
          std::max(summary.clock_error_us, static_cast<double>(part.clock_error_ns()) / 1e3);
    for (const v1::TraceBatch& batch : part.batches()) {
      ++summary.batches;
      AddPhases(trace, batch, sweep);
      if (batch.begins_step()) steps.push_back(batch.submitted_ns());
      first = std::min(first, batch.submitted_ns());
      last = std::max(last, BatchPhases(batch).done);
    }
  }
  if (summary.batches == 0) return;
  std::sort(steps.begin(), steps.end());
  double count = 1;
  // From the beginning of one to the beginning of another: what is before the first is not known.
  if (steps.size() > 1) {
    first = steps.front();
    last = steps.back();
    count = static_cast<double>(steps.size() - 1);
    summary.steps = static_cast<int64_t>(steps.size() - 1);
    summary.step_ms = static_cast<double>(last - first) / 1e6 / count;
  }
  const auto shares = sweep.Shares(first, last);
  for (size_t i = 0; i < kTracePhases; ++i)
    summary.phase_ms[i] = static_cast<double>(shares[i]) / 1e6 / count;
}

void SumUpLateness(const Trace& trace, const RankBatches& read, RankSummary& summary) {
  double sum = 0;
  for (const v1::TraceBatches& part : read.parts) {
    for (const v1::TraceBatch& batch : part.batches()) {
      const Shared& shared = trace.shared.at({batch.lane(), batch.sequence()});
      if (!NeedsAll(batch) || shared.ranks < 2) continue;
      ++summary.collectives;
      const int64_t lag = shared.took_longest - Took(batch);
      sum += static_cast<double>(lag) / 1e6;
      summary.lag_ms_max = std::max(summary.lag_ms_max, static_cast<double>(lag) / 1e6);
      if (shared.last_rank == summary.rank && lag > kLateMinNs) ++summary.last_in;
    }
  }
  if (summary.collectives > 0) summary.lag_ms_mean = sum / static_cast<double>(summary.collectives);
}

double Percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

}  // namespace

absl::string_view Name(TracePhase phase) {
  constexpr absl::string_view kNames[] = {"transfer", "pack",      "wait",
                                          "queue",    "negotiate", "program"};
  return kNames[static_cast<size_t>(phase)];
}

absl::Duration TraceTimeout(const v1::TraceRequest& request) {
  // coordd records for five minutes at most, and collects for ten seconds.
  constexpr absl::Duration kRecordsAtMost = absl::Minutes(5), kCollectsWithin = absl::Minutes(1);
  return kCollectsWithin +
         (request.steps() > 0 ? kRecordsAtMost : absl::Seconds(request.seconds()));
}

TraceSummary Summarize(const v1::TraceReply& reply) {
  const Trace trace = Read(reply);
  TraceSummary summary;
  summary.job = OneLine(reply.job());
  summary.generation = reply.generation();
  summary.size = reply.size();
  summary.steps = reply.steps();
  summary.seconds = reply.seconds();
  summary.note = OneLine(reply.note());
  for (int i = 0; i < reply.ranks_size(); ++i) {
    const v1::TraceRank& told = reply.ranks(i);
    RankSummary& rank = summary.ranks.emplace_back();
    rank.rank = told.rank();
    rank.hostname = told.hostname();
    rank.pid = told.pid();
    rank.missing = told.missing();
    rank.dropped = told.dropped();
    SumUpTimes(trace, trace.ranks[static_cast<size_t>(i)], rank);
    SumUpLateness(trace, trace.ranks[static_cast<size_t>(i)], rank);
  }
  const auto latest = std::max_element(
      summary.ranks.begin(), summary.ranks.end(),
      [](const RankSummary& a, const RankSummary& b) { return a.last_in < b.last_in; });
  if (latest != summary.ranks.end() && latest->last_in > 0 &&
      100 * latest->last_in >= kOftenPercent * latest->collectives)
    summary.latest_rank = latest->rank;
  return summary;
}

bool NothingExecuted(const TraceSummary& summary) {
  return std::all_of(summary.ranks.begin(), summary.ranks.end(), [](const RankSummary& rank) {
    return rank.batches == 0 && rank.dropped == 0;
  });
}

std::string NothingText(const TraceSummary& summary, absl::string_view stalls) {
  return absl::StrCat("job ", summary.job, ", generation ", summary.generation, ", ", summary.size,
                      summary.size == 1 ? " rank" : " ranks", ": nothing was executed in ",
                      DurationText(summary.seconds), "; ",
                      stalls.empty() ? "`coordctl status` and `coordctl events` tell what its "
                                       "ranks do"
                                     : stalls,
                      summary.note.empty() ? "" : absl::StrCat(" (", summary.note, ")"), "\n");
}

std::string ToText(const TraceSummary& summary, absl::string_view file) {
  constexpr absl::string_view kMeanings[] = {
      "transfer: bytes travel and are reduced",
      "pack: into and out of fusion buffers",
      "wait: other ranks have not come",
      "queue: batches of its own are before it",
      "negotiate: submitted, and not planned or not complete",
      "program: no collective is under way: computing, reading input"};
  std::string text = absl::StrCat("job ", summary.job, ", generation ", summary.generation, ", ",
                                  summary.size, summary.size == 1 ? " rank: " : " ranks: ");
  std::array<double, kTracePhases> mean = {};
  double step_ms = 0, whole = 0;
  int with_data = 0;
  for (const RankSummary& rank : summary.ranks) {
    if (rank.batches == 0) continue;
    ++with_data;
    step_ms += rank.step_ms;
    for (size_t i = 0; i < kTracePhases; ++i) mean[i] += rank.phase_ms[i];
  }
  for (double& one : mean) whole += one /= std::max(1, with_data);
  if (summary.steps > 0) {
    absl::StrAppendFormat(&text, "%d steps, %.3f ms each\n", summary.steps,
                          step_ms / std::max(1, with_data));
  } else {
    absl::StrAppendFormat(&text, "%.1f s\n", summary.seconds);
  }
  if (!summary.note.empty()) absl::StrAppend(&text, "  note: ", PrintableText(summary.note), "\n");
  absl::StrAppend(&text, summary.steps > 0 ? "where a step goes" : "where the time goes",
                  ", mean over the ranks:\n");
  for (size_t i = 0; i < kTracePhases; ++i) {
    absl::StrAppendFormat(&text, "  %12.3f ms %5.1f %%  %s\n", mean[i], Percent(mean[i], whole),
                          kMeanings[i]);
  }
  absl::StrAppendFormat(&text, "  %5s %-20s %8s %9s %9s %9s %14s %9s %9s\n", "rank", "host",
                        "batches", "program", "wait", "transfer", "came last in", "late by",
                        "at most");
  for (const RankSummary& rank : summary.ranks) {
    absl::StrAppendFormat(&text, "  %5d %-20s %8d %8.1f%% %8.1f%% %8.1f%% %14s %6.3f ms %6.3f ms\n",
                          rank.rank, PrintableText(rank.hostname), rank.batches,
                          Percent(rank.phase_ms[static_cast<size_t>(TracePhase::kProgram)], whole),
                          Percent(rank.phase_ms[static_cast<size_t>(TracePhase::kWait)], whole),
                          Percent(rank.phase_ms[static_cast<size_t>(TracePhase::kTransfer)], whole),
                          absl::StrCat(rank.last_in, " of ", rank.collectives), rank.lag_ms_mean,
                          rank.lag_ms_max);
    if (!rank.missing.empty())
      absl::StrAppend(&text, "        missing: ", PrintableText(rank.missing), "\n");
    if (rank.dropped > 0)
      absl::StrAppend(&text, "        ", rank.dropped, " older batches found no room\n");
  }
  if (summary.latest_rank >= 0)
    absl::StrAppend(&text, "the others wait for rank ", summary.latest_rank, "\n");
  double error_us = -1;
  for (const RankSummary& rank : summary.ranks) error_us = std::max(error_us, rank.clock_error_us);
  if (!file.empty()) {
    absl::StrAppend(&text, "timeline for Perfetto: ", file);
    if (error_us >= 0)
      absl::StrAppendFormat(&text, " (clocks of the ranks are right to %.0f us)", error_us);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string ToJson(const TraceSummary& summary, absl::string_view file) {
  using Json = nlohmann::ordered_json;
  Json ranks = Json::array();
  for (const RankSummary& rank : summary.ranks) {
    Json phases;
    for (size_t i = 0; i < kTracePhases; ++i)
      phases[std::string(Name(static_cast<TracePhase>(i)))] = rank.phase_ms[i];
    ranks.push_back({{"rank", rank.rank},
                     {"hostname", rank.hostname},
                     {"pid", rank.pid},
                     {"batches", rank.batches},
                     {"dropped", rank.dropped},
                     {"missing", rank.missing},
                     {"steps", rank.steps},
                     {"step_ms", rank.step_ms},
                     {"phase_ms", std::move(phases)},
                     {"collectives", rank.collectives},
                     {"last_in", rank.last_in},
                     {"lag_ms_mean", rank.lag_ms_mean},
                     {"lag_ms_max", rank.lag_ms_max},
                     {"clock_error_us", rank.clock_error_us}});
  }
  const Json json = {{"job", summary.job},
                     {"generation", summary.generation},
                     {"size", summary.size},
                     {"steps", summary.steps},
                     {"seconds", summary.seconds},
                     {"note", summary.note},
                     {"latest_rank", summary.latest_rank},
                     {"ranks", std::move(ranks)},
                     {"file", std::string(file)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string TimelineOf(const v1::TraceReply& reply) {
  const Trace trace = Read(reply);
  int64_t origin = std::numeric_limits<int64_t>::max();
  for (const RankBatches& rank : trace.ranks)
    for (const v1::TraceBatches& part : rank.parts)
      for (const v1::TraceBatch& batch : part.batches())
        origin = std::min(origin, batch.submitted_ns() + part.clock_offset_ns());
  std::string out = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (int i = 0; i < reply.ranks_size(); ++i) {
    const v1::TraceRank& rank = reply.ranks(i);
    ChromeTrace events(rank.rank(), origin, /*mark_steps=*/true);
    events.AddProcess(absl::StrCat("rank ", rank.rank(), " (", rank.hostname(), ", pid ",
                                   rank.pid(), rank.missing().empty() ? ")" : "), incomplete"),
                      &out);
    for (const v1::TraceBatches& part : trace.ranks[static_cast<size_t>(i)].parts) {
      events.AddBatches(
          part, part.clock_offset_ns(),
          [&](const v1::TraceBatch& batch) { return WaitOf(trace, batch); }, &out);
    }
  }
  // Every event is followed by a comma.
  absl::StrAppend(&out, "{\"ph\":\"M\",\"pid\":0,\"name\":\"trace_of\",\"args\":{\"job\":",
                  JsonString(reply.job()), ",\"generation\":", reply.generation(), "}}\n]}\n");
  return out;
}

}  // namespace coordd
