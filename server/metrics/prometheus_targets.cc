#include "server/metrics/prometheus_targets.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/node_metrics.h"

namespace coordd {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string PrometheusTargets(const v1::ServerState& state) {
  // Of several workers behind one relay the first rank stands for all.
  std::map<std::tuple<std::string, int32_t>, Json> by_job_and_rank;
  std::map<std::pair<std::string, std::string>, int32_t> first_of_node;
  for (const v1::JobState& job : state.jobs()) {
    for (const v1::WorkerState& worker : job.workers()) {
      if (worker.rank() < 0 || worker.metrics_address().empty()) continue;
      const MetricsPlace place = MetricsPlaceOf(worker.metrics_address());
      Json target = {{"targets", {place.address}},
                     {"labels",
                      {{"instance", absl::StrCat(job.name(), "/", worker.rank())},
                       {"job_name", job.name()},
                       {"rank", absl::StrCat(worker.rank())},
                       {"hostname", worker.hostname()}}}};
      if (place.of_node) {
        const auto [first, is_new] =
            first_of_node.try_emplace({job.name(), place.address}, worker.rank());
        if (!is_new && first->second <= worker.rank()) continue;
        if (!is_new) by_job_and_rank.erase({job.name(), first->second});
        first->second = worker.rank();
        target["labels"] = {{"__metrics_path__", kNodeMetricsPath},
                            {"instance", absl::StrCat(job.name(), "/", worker.hostname())},
                            {"job_name", job.name()},
                            {"hostname", worker.hostname()}};
      }
      by_job_and_rank[{job.name(), worker.rank()}] = std::move(target);
    }
  }
  Json targets = Json::array();
  for (auto& [key, target] : by_job_and_rank) targets.push_back(std::move(target));
  return targets.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace coordd
