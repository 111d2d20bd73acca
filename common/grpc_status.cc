#include "common/grpc_status.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace coordd {

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status FromCoordd(const grpc::Status& status) {
  absl::Status plain = FromGrpc(status);
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

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace coordd
