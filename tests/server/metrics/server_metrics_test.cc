#include "server/metrics/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include "absl/strings/str_cat.h"
#include "server/job/coordinator_state.h"
#include "server/metrics/label_values.h"

namespace coordd {
namespace {

using testing::HasSubstr;
using testing::Not;

class ServerMetricsTest : public testing::Test {
 protected:
  void On(Event::Kind kind, const std::string& job = "train") {
    Event event{.kind = kind};
    event.job = job;
    metrics_.OnEvent(event);
  }
  static v1::ServerState StateOf(const std::vector<std::string>& jobs) {
    v1::ServerState state;
    for (const std::string& name : jobs) state.add_jobs()->set_name(name);
    return state;
  }

  prometheus::Registry registry_;
  ServerMetrics metrics_{registry_, absl::FromUnixSeconds(1'700'000'000)};
};

TEST_F(ServerMetricsTest, TellTheStoryOfAPlan) {
  Event event{.kind = Event::Kind::kTensorsPlanned};
  event.job = "train";
  event.batches = 2;
  event.tensors = 3;
  event.bytes = 4096;
  event.reported_by_spec = 2;
  event.reported_by_slot = 10;
  event.slots_forgotten = 1;
  event.negotiation = {absl::Milliseconds(2), absl::Milliseconds(3), absl::Seconds(20)};
  metrics_.OnEvent(event);
  for (const char* line :
       {"coordd_plans_total{job_name=\"train\"} 1\n",
        "coordd_batches_planned_total{job_name=\"train\"} 2\n",
        "coordd_tensors_planned_total{job_name=\"train\"} 3\n",
        "coordd_bytes_planned_total{job_name=\"train\"} 4096\n",
        "coordd_reports_total{gear=\"negotiated\",job_name=\"train\"} 2\n",
        "coordd_reports_total{gear=\"cached\",job_name=\"train\"} 10\n",
        "coordd_slots_forgotten_total{job_name=\"train\"} 1\n",
        "coordd_negotiation_seconds_count{job_name=\"train\"} 3\n",
        "coordd_negotiation_seconds_bucket{job_name=\"train\",le=\"0.0025\"} 1\n"}) {
    EXPECT_THAT(metrics_.Text(), HasSubstr(line));
  }
}

// To Prometheus a series that appears with its first count has not grown.
TEST_F(ServerMetricsTest, KnowAJobsLossesBeforeThereAreAny) {
  On(Event::Kind::kJobCreated);
  for (const char* line :
       {"coordd_departures_total{cause=\"connection_lost\",job_name=\"train\"} 0\n",
        "coordd_departures_total{cause=\"program_failed\",job_name=\"train\"} 0\n",
        "coordd_events_total{job_name=\"train\",kind=\"rank_stuck\"} 0\n",
        "coordd_events_total{job_name=\"train\",kind=\"job_created\"} 1\n",
        "coordd_tensor_failures_total{code=\"DEADLINE_EXCEEDED\",job_name=\"train\"} 0\n",
        "coordd_failures_reported_total{job_name=\"train\"} 0\n",
        "coordd_stalls_total{job_name=\"train\"} 0\n"}) {
    EXPECT_THAT(metrics_.Text(), HasSubstr(line));
  }
}

TEST_F(ServerMetricsTest, KnowTheLossesOfAJobThatWasThereBefore) {
  metrics_.SetState(StateOf({"train"}));
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("coordd_departures_total{cause=\"evicted\",job_name=\"train\"} 0\n"));
}

TEST_F(ServerMetricsTest, KnowWhatCanBeRefusedBeforeAnythingIs) {
  for (const char* line : {"coordd_join_refusals_total{code=\"UNAUTHENTICATED\"} 0\n",
                           "coordd_calls_denied_total{call=\"Dismiss\",role=\"worker\"} 0\n",
                           "coordd_audit_entries_lost_total{reason=\"not_written\"} 0\n",
                           "coordd_sessions_dropped_total{reason=\"no_join\"} 0\n",
                           "coordd_state_commits_total{code=\"UNAVAILABLE\"} 0\n",
                           "coordd_store_calls_total{code=\"OK\",method=\"compare_set\"} 0\n",
                           "coordd_events_total{kind=\"asleep\"} 0\n"}) {
    EXPECT_THAT(metrics_.Text(), HasSubstr(line));
  }
  // An operator may do everything.
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("role=\"operator\"")));
}

// Every cause, kind and role that there is has been thought of.
TEST_F(ServerMetricsTest, KnowEveryValueOfALabel) {
  for (int cause = 1; cause < v1::DepartureCause_ARRAYSIZE; ++cause) {
    EXPECT_THAT(DepartureCauses(), testing::Contains(static_cast<v1::DepartureCause>(cause)));
  }
  for (int kind = 1; kind < v1::EventKind_ARRAYSIZE; ++kind) {
    std::vector<v1::EventKind> all(JobEventKinds().begin(), JobEventKinds().end());
    all.insert(all.end(), OwnEventKinds().begin(), OwnEventKinds().end());
    EXPECT_THAT(all, testing::Contains(static_cast<v1::EventKind>(kind)));
  }
}

TEST_F(ServerMetricsTest, CountTheFailuresThatMembersReport) {
  On(Event::Kind::kFailureReported);
  On(Event::Kind::kFailureReported);
  EXPECT_THAT(metrics_.Text(), HasSubstr("coordd_failures_reported_total{job_name=\"train\"} 2\n"));
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("unspecified")));
}

TEST_F(ServerMetricsTest, NameARankThatAStallWaitsFor) {
  v1::ServerState state = StateOf({"train", "eval"});
  v1::StalledTensor& tensor = *state.mutable_jobs(0)->add_stalled();
  tensor.add_missing_ranks(3);
  tensor.add_missing_ranks(5);
  metrics_.SetState(state);
  EXPECT_THAT(metrics_.Text(), HasSubstr("coordd_stall_missing_rank{job_name=\"train\"} 3\n"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("coordd_stall_missing_rank{job_name=\"eval\"} -1\n"));
}

TEST_F(ServerMetricsTest, CountDeparturesByCause) {
  Event event{.kind = Event::Kind::kWorkerDeparted};
  event.job = "train";
  event.cause = v1::DEPARTURE_CAUSE_LEASE_EXPIRED;
  metrics_.OnEvent(event);
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("coordd_departures_total{cause=\"lease_expired\",job_name=\"train\"} 1\n"));
}

TEST_F(ServerMetricsTest, CountWhatOperatorsSeeByKind) {
  On(Event::Kind::kDrainBegan);
  On(Event::Kind::kDrainBegan);
  On(Event::Kind::kAsleep, "");
  On(Event::Kind::kStaleMessage);
  for (const char* line : {"coordd_events_total{job_name=\"train\",kind=\"drain_began\"} 2\n",
                           "coordd_events_total{kind=\"asleep\"} 1\n"}) {
    EXPECT_THAT(metrics_.Text(), HasSubstr(line));
  }
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("unspecified")));
}

TEST_F(ServerMetricsTest, NeverTakeTheNameOfARefusedJobAsALabel) {
  Event event{.kind = Event::Kind::kJoinRefused};
  event.job = "chosen-by-a-stranger";
  event.code = absl::StatusCode::kUnauthenticated;
  metrics_.OnEvent(event);
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("coordd_join_refusals_total{code=\"UNAUTHENTICATED\"} 1\n"));
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("stranger")));
}

TEST_F(ServerMetricsTest, ForgetAJobThatCoorddHasForgotten) {
  On(Event::Kind::kWorkerJoined);
  metrics_.SetState(StateOf({"train"}));
  EXPECT_THAT(metrics_.Text(), HasSubstr("job_name=\"train\""));
  metrics_.SetState(StateOf({}));
  metrics_.SetState(StateOf({}));
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("job_name=\"train\"")));
}

TEST_F(ServerMetricsTest, KeepAJobThatIsNewerThanTheState) {
  On(Event::Kind::kWorkerJoined);
  metrics_.SetState(StateOf({}));  // was described before the join
  EXPECT_THAT(metrics_.Text(), HasSubstr("coordd_joins_total{job_name=\"train\"} 1\n"));
}

TEST_F(ServerMetricsTest, BoundTheNumberOfSeries) {
  for (int i = 0; i < 3000; ++i) On(Event::Kind::kWorkerJoined, absl::StrCat("job", i));
  EXPECT_THAT(metrics_.Text(), HasSubstr("coordd_joins_total{job_name=\"job2047\"} 1\n"));
  EXPECT_THAT(metrics_.Text(), Not(HasSubstr("job_name=\"job2048\"")));
  EXPECT_THAT(metrics_.Text(), HasSubstr("coordd_joins_total{job_name=\"(others)\"} 952\n"));
}

TEST_F(ServerMetricsTest, CountProcessSetsAndRanksThatHaveJoined) {
  v1::ServerState state = StateOf({"train"});
  state.mutable_jobs(0)->set_process_sets(3);
  state.mutable_jobs(0)->set_pairs(2);
  state.mutable_jobs(0)->set_joined_count(1);
  metrics_.SetState(state);
  for (const char* line : {"coordd_process_sets{job_name=\"train\"} 3\n",
                           "coordd_process_set_pairs{job_name=\"train\"} 2\n",
                           "coordd_joined_ranks{job_name=\"train\"} 1\n"}) {
    EXPECT_THAT(metrics_.Text(), HasSubstr(line));
  }
}

TEST_F(ServerMetricsTest, CountTheRanksWhoseGpusNeedSomebodysAttention) {
  v1::ServerState state = StateOf({"train"});
  v1::JobState& job = *state.mutable_jobs(0);
  job.add_workers();
  job.add_workers()->mutable_gpu_health()->set_last_xid(79);
  v1::GpuHealth& slow = *job.add_workers()->mutable_gpu_health();
  slow.add_throttle_reasons("power cap");
  slow.add_throttle_reasons("temperature");
  slow.set_ecc_uncorrected(2);
  metrics_.SetState(state);
  for (const char* line : {"coordd_gpu_xid_ranks{job_name=\"train\"} 1\n",
                           "coordd_gpu_throttled_ranks{job_name=\"train\"} 1\n",
                           "coordd_gpu_ecc_uncorrected_errors{job_name=\"train\"} 2\n"}) {
    EXPECT_THAT(metrics_.Text(), HasSubstr(line));
  }
}

TEST_F(ServerMetricsTest, ShowTheStragglerOfAJob) {
  v1::ServerState state = StateOf({"train"});
  state.mutable_jobs(0)->add_workers()->set_arrival_lag_seconds(0.001);
  state.mutable_jobs(0)->add_workers()->set_arrival_lag_seconds(0.25);
  metrics_.SetState(state);
  EXPECT_THAT(metrics_.Text(),
              HasSubstr("coordd_arrival_lag_seconds_max{job_name=\"train\"} 0.25\n"));
}

}  // namespace
}  // namespace coordd
