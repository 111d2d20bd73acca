// Who is calling: what was verified of a connection, as coordd's rules know it. (io)
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/model/access_rules.h"

namespace grpc {
class CallbackServerContext;
}

namespace coordd {

class ConnectionTable;
class TlsStream;

// Of a client at `peer`, "10.0.0.1:4711" or "[::1]:4711", with what its certificate says; `tls` is
// null where none is spoken: then it is WithoutTls(), an operator. PERMISSION_DENIED: the
// certificate is of coordd's authority, but it is not clear whose it is (IdentityOf). Never null.
absl::StatusOr<std::shared_ptr<const Caller>> MakeCaller(const std::string& peer,
                                                         const TlsStream* tls);

// Thread-safe. Of the connection that a call came over. As MakeCaller; UNAVAILABLE: it has ended.
absl::StatusOr<std::shared_ptr<const Caller>> CallerOf(const grpc::CallbackServerContext& context,
                                                       const ConnectionTable& connections);

// Against whose bounds it counts, however many connections he has: the name of a certificate, or
// without TLS an address.
std::string AccountOf(const Caller& caller);

}  // namespace coordd
