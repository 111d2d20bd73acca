#include "server/door/caller.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/server_context.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"

namespace coordd {
namespace {

std::vector<std::string> Values(const grpc::AuthContext& context, const char* property) {
  std::vector<std::string> values;
  for (const grpc::string_ref& value : context.FindPropertyValues(property))
    values.emplace_back(value.data(), value.size());
  return values;
}

// Not whether a name is in the certificate: one without any is no reason to trust it more.
bool IsWithoutTls(const grpc::AuthContext& context) {
  return Values(context, GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME) ==
         std::vector<std::string>{"insecure"};
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Caller>> CallerOf(const grpc::CallbackServerContext& context) {
  auto caller = std::make_shared<Caller>();
  caller->peer = context.peer();
  const std::shared_ptr<const grpc::AuthContext> proven = context.auth_context();
  if (proven == nullptr || IsWithoutTls(*proven)) {
    caller->identity = WithoutTls();
    return std::shared_ptr<const Caller>(std::move(caller));
  }
  const std::vector<std::string> names = Values(*proven, GRPC_X509_CN_PROPERTY_NAME);
  COORDD_ASSIGN_OR_RETURN(caller->identity, IdentityOf(Values(*proven, GRPC_PEER_URI_PROPERTY_NAME),
                                                       names.empty() ? "" : names[0]));
  return std::shared_ptr<const Caller>(std::move(caller));
}

}  // namespace coordd
