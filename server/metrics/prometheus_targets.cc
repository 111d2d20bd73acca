#include "server/metrics/prometheus_targets.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {

std::string PrometheusTargets(const v1::ServerState& state) {
  using Json = nlohmann::ordered_json;
  std::map<std::pair<std::string, int32_t>, Json> by_job_and_rank;
  for (const v1::JobState& job : state.jobs()) {
    for (const v1::WorkerState& worker : job.workers()) {
      if (worker.rank() < 0 || worker.metrics_address().empty()) continue;
      by_job_and_rank[{job.name(), worker.rank()}] = {{"targets", {worker.metrics_address()}},
                                                      {"labels",
                                                       {{"job_name", job.name()},
                                                        {"rank", absl::StrCat(worker.rank())},
                                                        {"hostname", worker.hostname()}}}};
    }
  }
  Json targets = Json::array();
  for (auto& [key, target] : by_job_and_rank) targets.push_back(std::move(target));
  return targets.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace coordd
