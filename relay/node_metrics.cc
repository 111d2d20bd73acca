#include "relay/node_metrics.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace coordd {
namespace {

constexpr absl::string_view kRank = "coordd_worker_rank";

enum class How { kSum, kLargest, kEach };

How HowOf(absl::string_view family) {
  for (absl::string_view each :
       {"coordd_worker_arrival_lag_seconds", "coordd_worker_heartbeat_lag_seconds",
        "coordd_worker_pending_tensors", "process_resident_memory_bytes"}) {
    if (family == each) return How::kEach;
  }
  if (absl::StartsWith(family, "coordd_worker_gpu_")) return How::kEach;
  for (absl::string_view largest :
       {"coordd_worker_build_info", "coordd_worker_generation", "coordd_worker_size",
        "process_open_fds", "process_max_fds", "process_start_time_seconds"}) {
    if (family == largest) return How::kLargest;
  }
  return How::kSum;
}

// "name{labels} value"
struct Sample {
  absl::string_view name, labels, value;
};
std::optional<Sample> ParseSample(absl::string_view line) {
  Sample sample;
  const size_t space = line.rfind(' ');
  if (space == absl::string_view::npos) return std::nullopt;
  sample.value = line.substr(space + 1);
  absl::string_view series = line.substr(0, space);
  const size_t brace = series.find('{');
  sample.name = series.substr(0, brace);
  if (brace == absl::string_view::npos) return sample;
  series.remove_prefix(brace + 1);
  if (!absl::ConsumeSuffix(&series, "}")) return std::nullopt;
  sample.labels = series;
  return sample;
}

struct Family {
  std::string head;  // HELP and TYPE
  // By name and labels, in the order in which the first text has them.
  std::vector<std::pair<std::string, double>> series;
};

class Joined {
 public:
  void Add(const std::string& text) {
    const std::string rank = RankOf(text);
    Family* family = nullptr;
    std::string name;
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      if (line[0] == '#') {
        const std::vector<absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 3));
        if (words.size() != 4) continue;
        if (words[2] != name) family = &FamilyOf(name = std::string(words[2]));
        if (!absl::StrContains(family->head, absl::StrCat(line, "\n")))
          absl::StrAppend(&family->head, line, "\n");
        continue;
      }
      const std::optional<Sample> sample = ParseSample(line);
      double value = 0;
      if (family == nullptr || !sample.has_value() || name == kRank ||
          !absl::StartsWith(sample->name, name) || !absl::SimpleAtod(sample->value, &value)) {
        continue;
      }
      AddSample(*family, name, *sample, value, rank);
    }
  }

  std::string Text(size_t ranks) const {
    std::string text = absl::StrCat(
        "# HELP coordd_worker_ranks Workers of the node that have answered\n"
        "# TYPE coordd_worker_ranks gauge\ncoordd_worker_ranks ",
        ranks, "\n");
    for (const Family* family : order_) {
      if (family->series.empty()) continue;
      text += family->head;
      for (const auto& [series, value] : family->series)
        absl::StrAppend(&text, series, " ", Number(value), "\n");
    }
    return text;
  }

 private:
  static std::string RankOf(const std::string& text) {
    const std::string line = absl::StrCat("\n", kRank, " ");
    const size_t at = text.find(line);
    if (at == std::string::npos) return "";
    const size_t begin = at + line.size();
    return text.substr(begin, text.find('\n', begin) - begin);
  }

  // What was counted is whole; it is not rounded.
  static std::string Number(double value) {
    if (value >= -1e15 && value <= 1e15 &&
        value == static_cast<double>(static_cast<int64_t>(value)))
      return absl::StrCat(static_cast<int64_t>(value));
    return absl::StrFormat("%.17g", value);
  }

  Family& FamilyOf(const std::string& name) {
    const auto [it, is_new] = families_.try_emplace(name);
    if (is_new) order_.push_back(&it->second);
    return it->second;
  }

  void AddSample(Family& family, const std::string& name, const Sample& sample, double value,
                 const std::string& rank) {
    const How how = HowOf(name);
    std::string labels(sample.labels);
    if (how == How::kEach)
      absl::StrAppend(&labels, labels.empty() ? "" : ",", "rank=\"", rank, "\"");
    const std::string series =
        labels.empty() ? std::string(sample.name) : absl::StrCat(sample.name, "{", labels, "}");
    const auto [at, is_new] = place_.try_emplace(series, family.series.size());
    if (is_new) {
      family.series.emplace_back(series, value);
      return;
    }
    double& sum = family.series[at->second].second;
    sum = how == How::kSum ? sum + value : std::max(sum, value);
  }

  std::map<std::string, Family> families_;
  std::vector<const Family*> order_;
  std::map<std::string, size_t> place_;  // in its family's series
};

}  // namespace

std::string NodeMetrics(const std::vector<std::string>& texts) {
  Joined joined;
  for (const std::string& text : texts) joined.Add(text);
  return joined.Text(texts.size());
}

}  // namespace coordd
