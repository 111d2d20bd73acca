#include "server/metrics/prometheus_targets.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

void AddWorker(v1::JobState* job, int32_t rank, const std::string& address) {
  v1::WorkerState* worker = job->add_workers();
  worker->set_rank(rank);
  worker->set_hostname("node1");
  worker->set_metrics_address(address);
}

TEST(PrometheusTargets, AreNoneWithoutMembers) {
  EXPECT_EQ(PrometheusTargets(v1::ServerState()), "[]\n");
}

TEST(PrometheusTargets, LeaveOutWhoIsNoMemberOrHasNoMetrics) {
  v1::ServerState state;
  v1::JobState* job = state.add_jobs();
  AddWorker(job, -1, "10.0.0.1:1");
  AddWorker(job, 0, "");
  EXPECT_EQ(PrometheusTargets(state), "[]\n");
}

TEST(PrometheusTargets, NameAWorkerByItsPlace) {
  v1::ServerState state;
  v1::JobState* job = state.add_jobs();
  job->set_name("train");
  AddWorker(job, 3, "10.0.0.1:9401");
  const std::string text = PrometheusTargets(state);
  EXPECT_NE(text.find("\"instance\": \"train/3\""), std::string::npos) << text;
  EXPECT_EQ(text.find("__metrics_path__"), std::string::npos) << text;
}

TEST(PrometheusTargets, AreOneForTheWorkersBehindARelay) {
  v1::ServerState state;
  v1::JobState* job = state.add_jobs();
  job->set_name("train");
  for (int32_t rank : {5, 4, 6}) AddWorker(job, rank, "10.0.0.1:9401/node");
  AddWorker(job, 7, "10.0.0.1:9402");
  const std::string text = PrometheusTargets(state);
  EXPECT_EQ(text.find("10.0.0.1:9401\""), text.rfind("10.0.0.1:9401\"")) << text;
  for (const char* part :
       {"\"__metrics_path__\": \"/node\"", "\"instance\": \"train/node1\"", "\"rank\": \"7\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  // Its series have the rank.
  EXPECT_EQ(text.find("\"rank\": \"4\""), std::string::npos) << text;
}

TEST(PrometheusTargets, AreInOrderSoThatTheFileChangesOnlyWithTheMembers) {
  v1::ServerState state, shuffled;
  for (v1::ServerState* s : {&state, &shuffled}) {
    v1::JobState* job = s->add_jobs();
    job->set_name("train");
    const bool forward = s == &state;
    AddWorker(job, forward ? 1 : 10, forward ? "h:1" : "h:10");
    AddWorker(job, forward ? 10 : 1, forward ? "h:10" : "h:1");
  }
  EXPECT_EQ(PrometheusTargets(state), PrometheusTargets(shuffled));
  EXPECT_LT(PrometheusTargets(state).find("h:1\""), PrometheusTargets(state).find("h:10\""));
}

}  // namespace
}  // namespace coordd
