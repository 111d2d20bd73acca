// What coordd serves over HTTP: metrics, health, state, targets, the status page. (io)
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/net/http_server.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

class Coordinator;
class GrpcPort;
class ServerMetrics;

// The status page, complete in itself (server/service/status_page.html, built in).
extern const char kStatusPage[];

// Handlers by path:
//   /            the status page
//   /metrics     Prometheus text format
//   /healthz     200 while the process serves
//   /readyz      200 when the coordinator thread answers, what it decides can be stored, and
//   coordd's
//                own port lets a client in; else 503 with the reason
//   /v1/jobs     ServerState as JSON
//   /v1/events   EventList as JSON; ?after=NUMBER, ?limit=COUNT, ?job=NAME
//   /v1/targets  Prometheus HTTP service discovery
// All arguments outlive the server.
struct HttpSources {
  std::function<void(v1::ServerState*)> complete;  // adds what the coordinator does not know
  GrpcPort* port = nullptr;
};
std::map<std::string, HttpHandler> HttpEndpoints(Coordinator& coordinator, ServerMetrics& metrics,
                                                 Clock& clock, const HttpSources& sources);

// For HttpServerOptions::one_at_a_time. A page that grows with the jobs is some ten times as large
// while it is made, so of those for people and programs there is one at a time; and one for
// Prometheus, whose scrapes do not wait for the others.
std::vector<std::set<std::string>> PagesMadeOneAtATime();

}  // namespace coordd
