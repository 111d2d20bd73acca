// Who is calling: what gRPC has verified of a connection, as coordd's rules know it. (io)
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/model/access_rules.h"

namespace grpc {
class CallbackServerContext;
}

namespace coordd {

// Thread-safe. Without TLS: WithoutTls(), an operator. PERMISSION_DENIED: the certificate is of
// coordd's authority, but it is not clear whose it is (IdentityOf). Never null.
absl::StatusOr<std::shared_ptr<const Caller>> CallerOf(const grpc::CallbackServerContext& context);

}  // namespace coordd
