#include "server/service/http_access.h"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/identity.h"
#include "common/base/log.h"
#include "common/base/log_limit.h"
#include "common/base/status_macros.h"
#include "common/base/watched_token.h"
#include "common/grpc/grpc_log.h"
#include "common/grpc/server_certificates.h"
#include "common/grpc/tls_stream.h"
#include "common/net/handshake_limit.h"
#include "server/metrics/server_metrics.h"
#include "server/model/access_rules.h"

namespace coordd {
namespace {

// What probes ask, which can show neither a certificate nor a secret: they say how coordd is.
constexpr absl::string_view kForEverybody[] = {"/healthz", "/readyz"};

// Of a header "Bearer TOKEN" (RFC 6750); empty: it is another.
absl::string_view BearerTokenOf(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
}

std::string RefusalText(HttpRefusal why, const std::string& peer, const std::string& said) {
  switch (why) {
    case HttpRefusal::kAddressFull:
      return absl::StrCat("a connection of ", peer, " was closed: its address has begun more than ",
                          HandshakeLimit::kPerSecond,
                          " TLS handshakes within a second that were not gone through with, or ",
                          HandshakeLimit::kAtOnce, " at a time");
    case HttpRefusal::kFull:
      return absl::StrCat("a connection of ", peer,
                          " was closed, since all places are taken: ", said);
    case HttpRefusal::kAnswers:
      return absl::StrCat("a request of ", peer,
                          " was not answered, since answers that wait to be ", "read have ",
                          kHttpAnswerBytesMax >> 20, " MiB at most: ", said);
    case HttpRefusal::kPlaintext:
      return absl::StrCat("a connection of ", peer, " was refused: it speaks no TLS (https)");
    case HttpRefusal::kHandshake:
      return absl::StrCat("a TLS handshake of ", peer,
                          " was refused: ", HandshakeFailureText(said));
    case HttpRefusal::kToken:
    case HttpRefusal::kUnauthorized:
      return absl::StrCat("a request of ", peer, " was refused: ", said);
  }
  return "";
}

// Touched by the server's own thread only.
class RefusalLog {
 public:
  RefusalLog(ServerMetrics* metrics, Clock& clock) : metrics_(metrics), clock_(clock) {}

  void Note(HttpRefusal why, const std::string& peer, const std::string& said) {
    if (metrics_ != nullptr) metrics_->OnHttpRefused(HttpRefusalName(why));
    const std::optional<std::string> more = limits_[why].Pass(clock_.Now());
    if (more.has_value()) COORDD_LOG(kWarning, "HTTP: ", RefusalText(why, peer, said), *more);
  }

 private:
  ServerMetrics* const metrics_;
  Clock& clock_;
  std::map<HttpRefusal, LogLimit> limits_;
};

// Who brings no token. In a sentence why he may not.
absl::Status MayAskByCertificate(const TlsStream& stream) {
  if (!stream.has_certificate())
    return absl::UnauthenticatedError(
        "bring a certificate of a viewer's or an operator's (`coordctl certs`), or the token of "
        "--http-token-file, as Authorization: Bearer TOKEN");
  COORDD_ASSIGN_OR_RETURN(const Identity who, IdentityOf(stream.Uris(), stream.CommonName()));
  // What is served is of all jobs.
  if (GrantOf(who.role, Call::kGetState) == Grant::kAny &&
      GrantOf(who.role, Call::kGetEvents) == Grant::kAny)
    return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(ToString(who),
                                                  " may not see all jobs: found role ",
                                                  Name(who.role), ", expected viewer or operator"));
}

}  // namespace

absl::string_view HttpRefusalName(HttpRefusal why) {
  switch (why) {
    case HttpRefusal::kAddressFull:
      return "address_full";
    case HttpRefusal::kAnswers:
      return "answers";
    case HttpRefusal::kFull:
      return "full";
    case HttpRefusal::kPlaintext:
      return "plaintext";
    case HttpRefusal::kHandshake:
      return "handshake";
    case HttpRefusal::kToken:
      return "token";
    case HttpRefusal::kUnauthorized:
      return "unauthorized";
  }
  return "";
}

void WatchHttp(ServerMetrics* metrics, Clock& clock, HttpServerOptions& options) {
  for (const absl::string_view path : kForEverybody) options.urgent.emplace_back(path);
  if (metrics != nullptr)
    for (const HttpRefusal why : kHttpRefusals) metrics->ExpectHttpRefused(HttpRefusalName(why));
  options.refused = [log = std::make_shared<RefusalLog>(metrics, clock)](
                        HttpRefusal why, const std::string& peer, const std::string& said) {
    log->Note(why, peer, said);
  };
}

absl::Status HttpTokens::Check(const std::string& from, absl::string_view brought, absl::Time now) {
  const bool is_right = token_ != nullptr && token_->Is(brought);
  if (is_right && WrongTokens::IsHardToGuess(brought)) return absl::OkStatus();
  const Caller caller{.identity = {}, .peer = absl::StrCat(from, ":0")};
  COORDD_RETURN_IF_ERROR(wrong_.MayTry(caller, /*job=*/"", now));
  if (is_right) return absl::OkStatus();
  wrong_.Note(caller, /*job=*/"", now);
  return absl::UnauthenticatedError(
      "this is not the token of --http-token-file: expected that one, or none, and a certificate "
      "of a viewer's or an operator's");
}

void GuardHttp(ServerCertificates& certificates, std::shared_ptr<const WatchedToken> token,
               Clock& clock, HttpServerOptions& options) {
  options.stream = [&certificates](int fd) -> std::unique_ptr<ClientStream> {
    return TlsStream::Over(fd, certificates.http_context().get(), /*wants_protocol=*/false);
  };
  options.may_ask = [tokens = std::make_shared<HttpTokens>(std::move(token)), &clock](
                        const ClientStream& stream, const std::string& from,
                        const HttpRequest& request) {
    for (const absl::string_view path : kForEverybody)
      if (request.path == path) return absl::OkStatus();
    const absl::string_view brought = BearerTokenOf(request.authorization);
    if (!brought.empty()) return tokens->Check(from, brought, clock.Now());
    return MayAskByCertificate(static_cast<const TlsStream&>(stream));
  };
}

}  // namespace coordd
