#include "client/coordctl/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/grpc_status.h"
#include "common/status_macros.h"
#include "coordd/v1/admin.grpc.pb.h"

namespace coordd {

absl::StatusOr<v1::ServerState> FetchState(const Target& target, const std::string& job,
                                           absl::Duration timeout) {
  COORDD_ASSIGN_OR_RETURN(const auto credentials, ChannelCredentialsFrom(target.tls));
  grpc::ChannelArguments arguments;
  // A site's web proxy has no business between an operator and coordd; a state of 131,072 workers
  // has some 50 MiB.
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetMaxReceiveMessageSize(256 << 20);
  const auto stub =
      v1::Admin::NewStub(grpc::CreateCustomChannel(target.address, credentials, arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  v1::GetStateRequest request;
  request.set_job(job);
  v1::ServerState state;
  const absl::Status status = FromGrpc(stub->GetState(&context, request, &state));
  if (status.ok()) return state;
  return absl::Status(status.code(),
                      absl::StrCat("coordd at ", target.address,
                                   target.tls.enabled() ? " (TLS): " : ": ", status.message()));
}

}  // namespace coordd
