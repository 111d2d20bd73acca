#include "server/door/caller.h"

#include <grpcpp/server_context.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/grpc/tls_stream.h"
#include "server/door/connection_table.h"

namespace coordd {

absl::StatusOr<std::shared_ptr<const Caller>> MakeCaller(const std::string& peer,
                                                         const TlsStream* tls) {
  auto caller = std::make_shared<Caller>();
  caller->peer =
      absl::StartsWith(peer, "[")
          ? absl::StrCat("ipv6:", absl::StrReplaceAll(peer, {{"[", "%5B"}, {"]", "%5D"}}))
          : absl::StrCat("ipv4:", peer);
  caller->identity = WithoutTls();
  // Whether there is TLS counts, and not whether a name is in the certificate: one without any is
  // no reason to trust it more.
  if (tls != nullptr) {
    COORDD_ASSIGN_OR_RETURN(caller->identity, IdentityOf(tls->Uris(), tls->CommonName()));
  }
  return std::shared_ptr<const Caller>(std::move(caller));
}

absl::StatusOr<std::shared_ptr<const Caller>> CallerOf(const grpc::CallbackServerContext& context,
                                                       const ConnectionTable& connections) {
  return connections.CallerAt(context.peer());
}

std::string AccountOf(const Caller& caller) {
  // Without the port, which is another one each time.
  return caller.identity == WithoutTls() ? caller.peer.substr(0, caller.peer.rfind(':'))
                                         : ToString(caller.identity);
}

}  // namespace coordd
