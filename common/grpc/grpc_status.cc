#include "common/grpc/grpc_status.h"

#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/one_line.h"

namespace coordd {
namespace {

// gRPC's words, whatever kept it from that.
constexpr absl::string_view kFailedToConnect = "failed to connect to all addresses";

// Whether the other side's gRPC, not coordd, has ended a stream for want of memory, or by an error
// of its own (RFC 9113, 7: ENHANCE_YOUR_CALM, INTERNAL_ERROR): another one may be served.
bool IsResetInNeed(const absl::Status& status) {
  return (absl::IsResourceExhausted(status) || absl::IsInternal(status)) &&
         absl::StartsWith(status.message(), "Received RST_STREAM with error code ");
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status FromCoordd(const grpc::Status& status) {
  // Its words become parts of our sentences, in logs of workers, too.
  const absl::Status plain(static_cast<absl::StatusCode>(status.error_code()),
                           OneLine(status.error_message()));
  if (IsResetInNeed(plain)) return absl::UnavailableError(plain.message());
  if (!absl::IsUnavailable(plain)) return plain;
  // Of OpenSSL: what a server without TLS answers is no record of it; coordd's answer is an alert.
  for (const char* said : {"wrong version number", "WRONG_VERSION_NUMBER",
                           "alert no application protocol", "ALERT_NO_APPLICATION_PROTOCOL"}) {
    if (!absl::StrContains(plain.message(), said)) continue;
    return absl::UnavailableError(
        absl::StrCat("the coordd there speaks no TLS: leave out --tls-ca, --tls-cert, --tls-key "
                     "and COORDD_TLS_*, "
                     "or start it with --tls-cert, --tls-key and --tls-ca (",
                     plain.message(), ")"));
  }
  return plain;
}

bool IsCertificateTrouble(const absl::Status& status) {
  constexpr absl::string_view kWords[] = {
      "is not in peer certificate", "certificate verify failed", "CERTIFICATE_VERIFY_FAILED",
      "WRONG_VERSION_NUMBER",       "wrong version number",      "alert bad certificate",
      "alert unknown ca",           "alert certificate required"};
  return absl::c_any_of(kWords, [&status](absl::string_view words) {
    return absl::StrContains(status.message(), words);
  });
}

bool WasTurnedAway(const absl::Status& status) {
  constexpr absl::string_view kWords[] = {"Connection reset by peer", "Socket closed",
                                          "Broken pipe", "Endpoint closing", "FD shutdown"};
  return absl::IsUnavailable(status) && absl::StartsWith(status.message(), kFailedToConnect) &&
         !IsCertificateTrouble(status) &&
         absl::c_any_of(kWords, [&status](absl::string_view words) {
           return absl::StrContains(status.message(), words);
         });
}

bool WasNeverSent(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StartsWith(status.message(), kFailedToConnect);
}

bool IsOfTheWay(const absl::Status& status) {
  if (absl::IsDeadlineExceeded(status))
    return absl::StartsWith(status.message(), "Deadline Exceeded");
  if (!absl::IsUnavailable(status)) return false;
  constexpr absl::string_view kBegins[] = {kFailedToConnect,
                                           "DNS resolution failed",
                                           "Socket closed",
                                           "recvmsg",
                                           "sendmsg",
                                           "Connection reset",
                                           "Broken pipe",
                                           "Endpoint closing",
                                           "FD shutdown",
                                           "Trying to connect an",
                                           "Failed parsing",
                                           "GOAWAY",
                                           "Connect",
                                           "the coordd there speaks",
                                           "connections to all backends failing"};
  return absl::c_any_of(kBegins, [&status](absl::string_view words) {
    return absl::StartsWith(status.message(), words);
  });
}

bool IsRefused(const absl::Status& status) {
  return IsOfTheWay(status) && absl::StrContains(status.message(), "Connection refused");
}

absl::Status ForPeople(const absl::Status& status) {
  constexpr absl::string_view kNoTls = "the coordd there speaks no TLS";
  const absl::string_view said = status.message();
  if (absl::IsDeadlineExceeded(status) && IsOfTheWay(status))
    return absl::DeadlineExceededError("it has not answered in time");
  if (!absl::IsUnavailable(status)) return status;
  if (absl::StartsWith(said, kNoTls)) {
    return absl::UnavailableError(said.substr(0, said.rfind(" (")));
  }
  if (absl::StrContains(said, "is not in peer certificate")) {
    return absl::UnavailableError(
        "its certificate is for other names than the one it is reached by: expected one of those, "
        "or "
        "a certificate with it (coordctl certs DIR NAME...)");
  }
  if (IsCertificateTrouble(status)) {
    return absl::UnavailableError(
        "its certificates and those given here do not fit: expected files of one `coordctl certs` "
        "(--tls-ca, --tls-cert, --tls-key or COORDD_TLS_*)");
  }
  if (!IsOfTheWay(status)) return status;
  if (!absl::StartsWith(said, kFailedToConnect))
    return absl::UnavailableError("its connection has ended");
  const size_t colon = said.rfind(": ");
  return absl::UnavailableError(absl::StrCat(
      "it cannot be reached", colon == absl::string_view::npos ? "" : said.substr(colon)));
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace coordd
