#include "server/service/standby_pages.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/watched_token.h"
#include "server/door/grpc_port.h"
#include "server/service/http_access.h"

namespace coordd {
namespace {

constexpr char kMetrics[] =
    "# HELP coordd_standby 1 while this coordd stands by for another one, else 0.\n"
    "# TYPE coordd_standby gauge\n"
    "coordd_standby 1\n";

}  // namespace

absl::StatusOr<std::unique_ptr<StandbyPages>> StandbyPages::Start(
    const CoordServerOptions& options) {
  std::unique_ptr<StandbyPages> pages(new StandbyPages());
  HttpServerOptions http = {
      .address = *options.http, .ports = std::nullopt, .connections_max = HttpConnectionsMax()};
  WatchHttp(/*metrics=*/nullptr, Clock::Real(), http);
  if (options.HttpHasTls()) {
    COORDD_ASSIGN_OR_RETURN(pages->certificates_, ServerCertificates::Load(options.tls));
    std::shared_ptr<WatchedToken> token;
    if (!options.http_token_file.empty()) {
      COORDD_ASSIGN_OR_RETURN(token,
                              WatchedToken::Open("--http-token-file", options.http_token_file));
    }
    GuardHttp(*pages->certificates_, std::move(token), Clock::Real(), http);
  }
  const StandbyPages& own = *pages;
  const std::map<std::string, HttpHandler> handlers = {
      {"/healthz", [](const std::string&) { return HttpResponse{.body = "ok\n"}; }},
      {"/readyz",
       [&own](const std::string&) {
         return HttpResponse{.status = 503, .body = absl::StrCat("stands by: ", own.why(), "\n")};
       }},
      {"/metrics", [](const std::string&) {
         return HttpResponse{200, "text/plain; version=0.0.4; charset=utf-8", kMetrics};
       }}};
  COORDD_ASSIGN_OR_RETURN(pages->http_, HttpServer::StartWith(http, handlers));
  return pages;
}

void StandbyPages::Tell(const std::string& why) {
  MutexLock lock(&mu_);
  why_ = why;
}

std::string StandbyPages::why() const {
  MutexLock lock(&mu_);
  return why_;
}

}  // namespace coordd
