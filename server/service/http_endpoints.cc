#include "server/service/http_endpoints.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/protocol/proto_json.h"
#include "server/door/grpc_port.h"
#include "server/metrics/prometheus_targets.h"
#include "server/metrics/server_metrics.h"
#include "server/service/coordinator.h"
#include "server/service/state_copies.h"

namespace coordd {
namespace {

// A turn of the coordinator takes milliseconds.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(2);
constexpr char kJson[] = "application/json; charset=utf-8";

HttpResponse NotReady(const absl::Status& why) {
  HttpResponse response;
  response.status = 503;
  response.body = absl::StrCat("503: ", why.message(), "\n");
  return response;
}

// "job=train&limit=5"; nullopt: nobody knows what it asks for.
std::optional<v1::GetEventsRequest> EventsAskedFor(const std::string& query) {
  v1::GetEventsRequest request;
  for (absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(part, '=');
    int64_t number = 0;
    if (pair.first == "job") {
      request.set_job(std::string(pair.second));  // no name needs an encoding
    } else if (!absl::SimpleAtoi(pair.second, &number) || number < 0) {
      return std::nullopt;
    } else if (pair.first == "after") {
      request.set_after(number);
    } else if (pair.first == "limit" && number <= static_cast<int64_t>(kEventsKept)) {
      request.set_limit(static_cast<int32_t>(number));
    } else {
      return std::nullopt;
    }
  }
  return request;
}

}  // namespace

std::vector<std::set<std::string>> PagesMadeOneAtATime() {
  return {{"/metrics"}, {"/v1/events", "/v1/jobs", "/v1/targets"}};
}

std::map<std::string, HttpHandler> HttpEndpoints(Coordinator& coordinator, ServerMetrics& metrics,
                                                 Clock& clock, const HttpSources& sources) {
  const auto copies = std::make_shared<StateCopies>(coordinator, clock, sources.complete);
  auto describe = [copies] { return copies->Get(); };
  std::map<std::string, HttpHandler> handlers;
  handlers["/"] = [](const std::string&) {
    return HttpResponse{200, "text/html; charset=utf-8", kStatusPage};
  };
  handlers["/healthz"] = [](const std::string&) { return HttpResponse{.body = "ok\n"}; };
  GrpcPort& port = *sources.port;
  handlers["/readyz"] = [&coordinator, &clock, complete = sources.complete,
                         &port](const std::string&) {
    const absl::Status turns = coordinator.Answers(clock.Now() + kAnswerTimeout);
    if (!turns.ok()) return NotReady(turns);
    v1::ServerState state;
    complete(&state);
    if (!state.store_error().empty()) {
      return NotReady(absl::UnavailableError(absl::StrCat(
          "no generation can form, since it cannot be stored: ", state.store_error())));
    }
    const absl::Status answers = port.Answers();
    return answers.ok() ? HttpResponse{.body = "ready\n"} : NotReady(answers);
  };
  handlers["/v1/jobs"] = [describe](const std::string&) {
    const auto state = describe();
    if (!state.ok()) return NotReady(state.status());
    return HttpResponse{200, kJson, ToJson(**state, /*pretty=*/false) + "\n"};
  };
  handlers["/v1/events"] = [&coordinator](const std::string& query) {
    const auto request = EventsAskedFor(query);
    if (request.has_value())
      return HttpResponse{200, kJson, ToJson(coordinator.events().Read(*request), false) + "\n"};
    return HttpResponse{
        .status = 400,
        .body = absl::StrCat("400: found ", query, ", expected after=NUMBER, limit=COUNT (at most ",
                             kEventsKept, ") or job=NAME\n")};
  };
  handlers["/v1/targets"] = [describe](const std::string&) {
    const auto state = describe();
    if (!state.ok()) return NotReady(state.status());
    return HttpResponse{200, kJson, PrometheusTargets(**state)};
  };
  handlers["/metrics"] = [describe, &coordinator, &metrics, &port](const std::string&) {
    // Without an answer the counters are still true, and more wanted than ever.
    if (const auto state = describe(); state.ok()) metrics.SetState(**state);
    metrics.SetInboxMessages(coordinator.inbox().size());
    metrics.SetConnections(port.connections(), port.connections_max());
    return HttpResponse{200, "text/plain; version=0.0.4; charset=utf-8", metrics.Text()};
  };
  for (const char* path : {"/readyz", "/v1/jobs", "/v1/targets"})
    metrics.ExpectHttpRequest(path, 503);
  metrics.ExpectHttpRequest("/v1/events", 400);
  for (auto& [path, handler] : handlers) {
    metrics.ExpectHttpRequest(path, 200);
    handler = [&metrics, path = path, answer = std::move(handler)](const std::string& query) {
      HttpResponse response = answer(query);
      metrics.OnHttpRequest(path, response.status);
      return response;
    };
  }
  return handlers;
}

}  // namespace coordd
