// docs/METRICS.md against the code, both ways: every metric of coordd and of a worker with its type
// and labels is in the document, and nothing else is. Includes both sides, as only tests may.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/job/coordinator_state.h"
#include "server/metrics/server_metrics.h"
#include "worker/runtime/worker_metrics.h"

namespace coordd {
namespace {

// Name -> "type {label, label}", labels in alphabetical order.
using Metrics = std::map<std::string, std::string>;

std::string Describe(absl::string_view type, const std::set<std::string>& labels) {
  return absl::StrCat(type, " {", absl::StrJoin(labels, ", "), "}");
}

std::string TypeName(prometheus::MetricType type) {
  switch (type) {
    case prometheus::MetricType::Counter:
      return "counter";
    case prometheus::MetricType::Gauge:
      return "gauge";
    case prometheus::MetricType::Histogram:
      return "histogram";
    default:
      return "another type";
  }
}

Metrics FromRegistry(const prometheus::Registry& registry) {
  Metrics metrics;
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    std::set<std::string> labels;
    for (const prometheus::ClientMetric& metric : family.metric) {
      for (const auto& label : metric.label) labels.insert(label.name);
    }
    metrics[family.name] = Describe(TypeName(family.type), labels);
  }
  return metrics;
}

std::string Unquoted(absl::string_view cell) {
  cell = absl::StripAsciiWhitespace(cell);
  absl::ConsumePrefix(&cell, "`");
  absl::ConsumeSuffix(&cell, "`");
  return std::string(cell);
}

// The rows of the table under "## `title`".
Metrics FromDocument(const std::string& title) {
  std::ifstream in(COORDD_METRICS_DOCUMENT);
  EXPECT_TRUE(in.is_open());
  Metrics metrics;
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (absl::StartsWith(line, "## ")) inside = line == "## " + title;
    if (!inside || !absl::StartsWith(line, "| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    if (cells.size() != 6) {
      ADD_FAILURE() << "a row needs four cells: " << line;
      continue;
    }
    std::set<std::string> labels;
    for (absl::string_view label : absl::StrSplit(cells[3], ',')) {
      if (!Unquoted(label).empty()) labels.insert(Unquoted(label));
    }
    EXPECT_FALSE(absl::StripAsciiWhitespace(cells[4]).empty()) << line;
    metrics[Unquoted(cells[1])] = Describe(absl::StripAsciiWhitespace(cells[2]), labels);
  }
  return metrics;
}

// Every kind of event and call once: a family without a series is not collected.
void Exercise(ServerMetrics& metrics) {
  for (int kind = 0; kind <= static_cast<int>(Event::Kind::kFailureReported); ++kind) {
    Event event{.kind = static_cast<Event::Kind>(kind)};
    event.job = "train";
    event.cause = v1::DEPARTURE_CAUSE_LEFT;
    event.negotiation = {absl::Milliseconds(1)};
    metrics.OnEvent(event);
  }
  metrics.OnTurn(absl::Microseconds(10));
  metrics.OnStateCommit(absl::StatusCode::kOk, absl::Milliseconds(3));
  metrics.OnSessionDropped(ServerMetrics::Drop::kNoJoin);
  metrics.OnConnectionRefused("full");
  metrics.OnCallDenied("Dismiss", "worker");
  metrics.OnAuditEntriesLost(1, ServerMetrics::AuditLoss::kNotWritten);
  metrics.SetCertificateEnd(absl::FromUnixSeconds(1));
  metrics.OnStoreCallStarted();
  metrics.OnStoreCallEnded("get", absl::StatusCode::kOk);
  metrics.OnHttpRequest("/", 200);
  metrics.OnHttpRefused("full");
  v1::ServerState state;
  state.add_jobs()->set_name("train");
  metrics.SetState(state);
}

TEST(MetricsDocument, DescribesCoordd) {
  prometheus::Registry registry;
  ServerMetrics metrics(registry, absl::FromUnixSeconds(1));
  Exercise(metrics);
  EXPECT_THAT(FromDocument("coordd"), testing::ContainerEq(FromRegistry(registry)));
}

TEST(MetricsDocument, DescribesWorkers) {
  prometheus::Registry registry;
  WorkerMetrics metrics(registry);
  metrics.RecordCollective(CollectiveKind::kAllreduce, "host", absl::StatusCode::kOk, 4);
  v1::GpuHealth health;
  health.set_utilization_percent(1);
  health.set_memory_used_bytes(1);
  health.set_memory_total_bytes(1);
  health.set_power_watts(1);
  health.set_temperature_celsius(1);
  health.set_ecc_corrected(0);
  health.add_throttle_reasons("power cap");
  metrics.SetGpu(health);
  v1::HostEdges edges;
  edges.add_between_nodes()->set_over("tcp");
  metrics.SetEdges(edges);
  EXPECT_THAT(FromDocument("Workers"), testing::ContainerEq(FromRegistry(registry)));
}

}  // namespace
}  // namespace coordd
