#include "common/protocol/proto_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "coordd/v1/admin.pb.h"
#include "coordd/v1/session.pb.h"
#include "coordd/v1/store.pb.h"

namespace coordd {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ToJson, ShowsEveryFieldByItsNameAlsoUnsetOnes) {
  EXPECT_EQ(
      ToJson(v1::ServerState(), false),
      R"({"version":"","epoch":0,"uptime_seconds":0.0,"listen":"","http":"","jobs":[],"store":"","store_error":"","cluster_id":"","node_sessions":0,"connections":null})");
}

TEST(ToJson, WhatIsOptionalAndNotKnownIsNoZero) {
  v1::GpuHealth health;
  health.set_utilization_percent(0);
  const std::string json = ToJson(health, false);
  EXPECT_THAT(json, HasSubstr(R"("utilization_percent":0,)"));
  EXPECT_THAT(json, HasSubstr(R"("power_watts":null,)"));
  EXPECT_THAT(json, HasSubstr(R"("last_xid":0,)"));
}

TEST(ToJson, WritesAMapAsAnObjectInOrder) {
  v1::Connections connections;
  (*connections.mutable_refused())["tls"] = 2;
  (*connections.mutable_refused())["full"] = 1;
  EXPECT_EQ(ToJson(connections, false), R"({"open":0,"max":0,"refused":{"full":1,"tls":2}})");
}

TEST(ToJson, WritesEnumeratorsInLowerCaseWithoutTheirPrefix) {
  v1::JobState job;
  job.set_phase(v1::JOB_PHASE_RUNNING);
  EXPECT_THAT(ToJson(job, false), HasSubstr(R"("phase":"running")"));
  v1::Departure departure;
  departure.set_cause(v1::DEPARTURE_CAUSE_CONNECTION_LOST);
  EXPECT_THAT(ToJson(departure, false), HasSubstr(R"("cause":"connection_lost")"));
}

TEST(ToJson, ShowsAnEnumeratorOfALaterVersionByItsNumber) {
  v1::Departure departure;
  departure.set_cause(static_cast<v1::DepartureCause>(99));
  EXPECT_THAT(ToJson(departure, false), HasSubstr("99"));
}

TEST(ToJson, Writes64BitIntegersAsNumbers) {
  v1::JobState job;
  job.set_bytes_planned(std::numeric_limits<int64_t>::max());
  EXPECT_THAT(ToJson(job, false), HasSubstr(R"("bytes_planned":9223372036854775807)"));
}

TEST(ToJson, WritesRepeatedValuesAndMessagesInOrder) {
  v1::StalledTensor stalled;
  stalled.add_missing_ranks(3);
  stalled.add_missing_ranks(1);
  EXPECT_THAT(ToJson(stalled, false), HasSubstr(R"("missing_ranks":[3,1])"));
  v1::JobState job;
  job.add_workers()->set_rank(7);
  EXPECT_THAT(ToJson(job, false), HasSubstr(R"("workers":[{"rank":7,)"));
}

TEST(ToJson, WritesDurationsAsSecondsAndAbsentMessagesAsNull) {
  v1::JobLimits limits;
  EXPECT_THAT(ToJson(limits, false), HasSubstr(R"("settling_window":null)"));
  limits.mutable_settling_window()->set_seconds(1);
  limits.mutable_settling_window()->set_nanos(500'000'000);
  EXPECT_THAT(ToJson(limits, false), HasSubstr(R"("settling_window":1.5)"));
}

TEST(ToJson, NeverShowsBytes) {
  v1::GetResponse response;
  response.set_value("a secret");
  EXPECT_EQ(ToJson(response, false), "{}");
}

TEST(ToJson, EscapesAndReplacesWhatIsNotText) {
  v1::WorkerState worker;
  worker.set_hostname("a\"b\n<\xff>");
  const std::string json = ToJson(worker, false);
  EXPECT_THAT(json, HasSubstr(R"("hostname":"a\"b\n<)"));
  EXPECT_THAT(json, Not(HasSubstr("\xff")));
}

TEST(ToJson, PrettyIsIndented) {
  v1::LanePosition lane;
  EXPECT_THAT(ToJson(lane, true), HasSubstr("{\n  \"lane\": 0"));
}

}  // namespace
}  // namespace coordd
