#include "server/service/http_endpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/temp_directory.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

v1::WorkerMessage JoinWithMetrics(const std::string& id, const std::string& address) {
  v1::WorkerMessage join = JoinMessage("train", id, 1);
  join.mutable_join()->set_metrics_address(address);
  return join;
}

TEST(HttpEndpoints, SayThatTheyLiveAndAreReady) {
  TestServer server;
  EXPECT_EQ(server.Get("/healthz").status, 200);
  EXPECT_EQ(server.Get("/readyz").status, 200);
}

TEST(HttpEndpoints, ShowTheStateAsJson) {
  TestServer server;
  TwoWorkers job(server);
  const HttpAnswer answer = server.Get("/v1/jobs");
  EXPECT_THAT(answer.head, HasSubstr("application/json"));
  const json state = json::parse(answer.body);
  EXPECT_EQ(state["listen"], server->listen_address().ToString());
  ASSERT_EQ(state["jobs"].size(), 1u);
  EXPECT_EQ(state["jobs"][0]["name"], "train");
  EXPECT_EQ(state["jobs"][0]["phase"], "running");
  EXPECT_EQ(state["jobs"][0]["workers"].size(), 2u);
  EXPECT_THAT(answer.body, Not(HasSubstr("secret")));  // the job's token
}

TEST(HttpEndpoints, ListWhatHasHappened) {
  TestServer server;
  {
    TwoWorkers job(server);
    RawWorker other(server.Channel());
    ASSERT_TRUE(other.Send(JoinMessage("other", "x", 1)));
    ASSERT_TRUE(other.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
    // Answered in a turn of its own, behind the one whose messages have come.
    ASSERT_EQ(server.Get("/readyz").status, 200);
    json list = json::parse(server.Get("/v1/events?job=train").body);
    std::vector<std::string> kinds;
    for (const json& event : list["events"]) {
      EXPECT_EQ(event["job"], "train");
      EXPECT_FALSE(event["warning"]);
      kinds.push_back(event["kind"]);
    }
    EXPECT_THAT(kinds,
                ElementsAre("job_created", "worker_joined", "worker_joined", "generation_formed"));
    const int64_t number = list["events"][3]["number"];
    list = json::parse(server.Get("/v1/events?job=other&after=" + std::to_string(number)).body);
    EXPECT_FALSE(list["events"].empty());
    EXPECT_EQ(list["events"][0]["job"], "other");
    list = json::parse(server.Get("/v1/events?limit=1").body);
    ASSERT_EQ(list["events"].size(), 1u);
    EXPECT_EQ(list["events"][0]["kind"], "generation_formed");
  }
  EXPECT_THAT(server.Get("/v1/events?limit=many").body, HasSubstr("expected after=NUMBER"));
  EXPECT_EQ(server.Get("/v1/events?since=3").status, 400);
}

TEST(HttpEndpoints, ServeAPageThatNeedsNothingFromElsewhere) {
  TestServer server;
  const HttpAnswer page = server.Get("/");
  EXPECT_THAT(page.head, HasSubstr("text/html"));
  EXPECT_THAT(page.body, HasSubstr("<title>coordd</title>"));
  EXPECT_THAT(page.body, HasSubstr("</html>"));
  for (const char* outside : {"src=\"http", "href=\"http", "@import", "url(http"})
    EXPECT_THAT(page.body, Not(HasSubstr(outside)));
}

TEST(HttpEndpoints, ServeMetricsInTheTextFormatOfPrometheus) {
  TestServer server;
  TwoWorkers job(server);
  const HttpAnswer answer = server.Get("/metrics");
  EXPECT_THAT(answer.head, HasSubstr("text/plain; version=0.0.4"));
  for (const char* line :
       {"coordd_members{job_name=\"train\"} 2\n", "coordd_generation{job_name=\"train\"} 1\n",
        "coordd_generations_total{job_name=\"train\"} 1\n",
        "coordd_joins_total{job_name=\"train\"} 2\n", "coordd_jobs{phase=\"running\"} 1\n",
        "coordd_sessions 2\n"}) {
    EXPECT_THAT(answer.body, HasSubstr(line));
  }
}

TEST(HttpEndpoints, CountTheirRequests) {
  TestServer server;
  server.Get("/healthz");
  server.Get("/healthz");
  server.Get("/not/ours");
  const std::string metrics = server.Get("/metrics").body;
  EXPECT_THAT(metrics,
              HasSubstr("coordd_http_requests_total{path=\"/healthz\",status=\"200\"} 2\n"));
  EXPECT_THAT(metrics, Not(HasSubstr("/not/ours")));
}

TEST(HttpEndpoints, ListTheMembersForPrometheus) {
  TestServer server;
  EXPECT_EQ(json::parse(server.Get("/v1/targets").body), json::array());
  RawWorker worker(server.Channel());
  ASSERT_TRUE(worker.Send(JoinWithMetrics("a", "127.0.0.7:9401")));
  ASSERT_TRUE(worker.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  const json expected = json::parse(
      R"([{"targets": ["127.0.0.7:9401"],
           "labels": {"instance": "train/0", "job_name": "train", "rank": "0",
                      "hostname": "host1"}}])");
  EXPECT_EQ(json::parse(server.Get("/v1/targets").body), expected);
}

// Else Prometheus would ask any page for it.
TEST(HttpEndpoints, ListNoAddressThatIsNotTheMembers) {
  TestServer server;
  RawWorker worker(server.Channel());
  ASSERT_TRUE(worker.Send(JoinWithMetrics("a", "192.0.2.7:80")));
  ASSERT_TRUE(worker.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  EXPECT_EQ(json::parse(server.Get("/v1/targets").body), json::array());
  EXPECT_THAT(server.Get("/v1/jobs").body, Not(HasSubstr("192.0.2.7")));
}

TEST(HttpEndpoints, ListAnyAddressWhereThatIsAskedFor) {
  CoordServerOptions options = TestServerOptions();
  options.any_metrics_address = true;
  TestServer server(options);
  RawWorker worker(server.Channel());
  ASSERT_TRUE(worker.Send(JoinWithMetrics("a", "192.0.2.7:80")));
  ASSERT_TRUE(worker.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  EXPECT_THAT(server.Get("/v1/targets").body, HasSubstr("192.0.2.7:80"));
}

TEST(HttpEndpoints, KeepTheTargetsFileLikeThePage) {
  const TempDirectory directory;
  CoordServerOptions options = TestServerOptions();
  options.prometheus_file_sd = directory / "targets.json";
  TestServer server(options);
  auto await = [&](auto condition) {
    while (!condition(FileText(options.prometheus_file_sd))) std::this_thread::yield();
  };
  await([](const std::string& text) { return text == "[]\n"; });
  RawWorker worker(server.Channel());
  ASSERT_TRUE(worker.Send(JoinWithMetrics("a", "127.0.0.7:9401")));
  ASSERT_TRUE(worker.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  await([](const std::string& text) { return text.find("127.0.0.7:9401") != std::string::npos; });
  EXPECT_EQ(FileText(options.prometheus_file_sd), server.Get("/v1/targets").body);
  ASSERT_TRUE(worker.Leave());
  EXPECT_TRUE(worker.Finish().ok());
  await([](const std::string& text) { return text == "[]\n"; });
}

TEST(HttpEndpoints, RefuseATargetsFileThatCannotBeWritten) {
  const TempDirectory directory;
  CoordServerOptions options = TestServerOptions();
  options.prometheus_file_sd = directory / "nowhere/targets.json";
  prometheus::Registry registry;
  EXPECT_THAT(CoordServer::Start(options, Clock::Real(), registry).status().message(),
              AllOf(HasSubstr("--prometheus-file-sd"), HasSubstr(options.prometheus_file_sd)));
}

TEST(HttpEndpoints, LetAScrapeWaitForNoOtherPage) {
  using testing::UnorderedElementsAre;
  EXPECT_THAT(PagesMadeOneAtATime(),
              ElementsAre(UnorderedElementsAre("/metrics"),
                          UnorderedElementsAre("/v1/events", "/v1/jobs", "/v1/targets")));
}

TEST(HttpEndpoints, CanBeOff) {
  CoordServerOptions options = TestServerOptions();
  options.http.reset();
  TestServer server(options);
  EXPECT_FALSE(server->http_address().has_value());
}

}  // namespace
}  // namespace coordd
