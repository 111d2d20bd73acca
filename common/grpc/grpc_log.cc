#include "common/grpc/grpc_log.h"

#include <google/protobuf/stubs/common.h>
#include <grpc/support/log.h>

#if GOOGLE_PROTOBUF_VERSION < 4022000
#include <google/protobuf/stubs/logging.h>
#endif

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"

namespace coordd {
namespace {

void OnLine(gpr_log_func_args* line) { COORDD_LOG(kDebug, "gRPC: ", line->message); }

// Later ones have no handler of lines, and log with Abseil.
#if GOOGLE_PROTOBUF_VERSION < 4022000
struct ProtobufLines {
  Mutex mu;
  LogLimit limit ABSL_GUARDED_BY(mu);
};
ProtobufLines& TheProtobufLines() {
  static ProtobufLines* lines = new ProtobufLines();
  return *lines;
}

void OnProtobufLine(google::protobuf::LogLevel level, const char* /*file*/, int /*line*/,
                    const std::string& text) {
  if (level == google::protobuf::LOGLEVEL_FATAL) {  // the process ends now
    COORDD_LOG(kError, "protobuf: ", text);
    return;
  }
  std::optional<std::string> more;
  {
    MutexLock lock(&TheProtobufLines().mu);
    more = TheProtobufLines().limit.Pass(Clock::Real().Now());
  }
  if (more.has_value()) COORDD_LOG(kWarning, "protobuf: ", text, *more);
}

void RouteProtobufLog() {
  [[maybe_unused]] static auto* const before = google::protobuf::SetLogHandler(&OnProtobufLine);
}
#else
void RouteProtobufLog() {}
#endif

// What OpenSSL finds wrong with a certificate; empty where nobody has asked for it.
std::string UnverifiedText(absl::string_view why) {
  const bool is_strangers = why.empty() || absl::StartsWith(why, "self-signed certificate") ||
                            absl::StartsWith(why, "unable to get") ||
                            absl::StartsWith(why, "unable to verify");
  if (is_strangers) return "its certificate is not of the authority in --tls-ca";
  const bool is_for_others = why == "unsuitable certificate purpose";
  return absl::StrCat(
      "its certificate, or an authority between it and --tls-ca, will not do: ", why.substr(0, 200),
      is_for_others ? " (expected one for clients and, of an authority, for signing)" : "");
}

}  // namespace

void RouteGrpcLog() {
  gpr_set_log_function(&OnLine);
  RouteProtobufLog();
}

void RouteGrpcLogUnlessWanted(const Environment& environment) {
  const bool wanted = !Variable(environment, "GRPC_VERBOSITY").empty() ||
                      !Variable(environment, "GRPC_TRACE").empty();
  if (!wanted) gpr_set_log_function(&OnLine);
  RouteProtobufLog();
}

std::string HandshakeFailureText(const std::string& openssl) {
  const std::pair<absl::string_view, absl::string_view> known[] = {
      {"peer did not return a certificate", "it presented no certificate"},
      {"certificate has expired", "its certificate has expired"},
      {"unknown ca", "it does not take our certificate: its --tls-ca is of another authority"},
      {"bad certificate", "it does not take our certificate"},
      {"certificate unknown", "it does not take our certificate"},
      {"certificate expired", "it finds that our certificate has expired"},
      {"http request", "it has sent HTTP, expected TLS 1.3"},
      {"https proxy request", "it has sent HTTP, expected TLS 1.3"},
      {"wrong version number", "it has sent plain bytes, expected TLS 1.3"},
      {"no shared cipher", "it speaks no TLS 1.3"},
      {"unsupported protocol", "it speaks no TLS 1.3"},
      {"version too low", "it speaks no TLS 1.3"},
      {"protocol version", "it speaks no TLS 1.3"},
      {"no application protocol", "it asks for no HTTP/2"},
      {"no suitable", "it has no algorithm in common with us"},
  };
  for (const auto& [said, text] : known) {
    if (absl::StrContains(openssl, said)) return std::string(text);
  }
  constexpr absl::string_view kUnverified = "certificate verify failed";
  absl::string_view why(openssl);
  if (const size_t at = why.find(kUnverified); at != why.npos) {
    why.remove_prefix(at + kUnverified.size());
    absl::ConsumePrefix(&why, ": ");
    return UnverifiedText(why);
  }
  // "error:0A0000C1:SSL routines::no shared cipher": what follows the library's name is for people.
  const absl::string_view said(openssl);
  const size_t at = absl::StartsWith(said, "error:") ? said.find("::") : said.npos;
  if (at == said.npos) return openssl.substr(0, 200);
  return absl::StrCat("its TLS handshake fails (", said.substr(at + 2, 200), ")");
}

}  // namespace coordd
