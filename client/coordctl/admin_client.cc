#include "client/coordctl/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/grpc/grpc_status.h"
#include "coordd/v1/admin.grpc.pb.h"

namespace coordd {

namespace {

// Calls `method` of coordd's Admin service.
template <typename Request, typename Reply>
absl::StatusOr<Reply> Ask(const Target& target, absl::Duration timeout, const Request& request,
                          grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Reply*)) {
  COORDD_ASSIGN_OR_RETURN(const auto credentials, ChannelCredentialsFrom(target.tls));
  grpc::ChannelArguments arguments;
  // A site's web proxy has no business between an operator and coordd; a state of 131,072 workers
  // has some 50 MiB, a trace at most 64.
  arguments.SetInt("grpc.enable_http_proxy", 0);
  arguments.SetMaxReceiveMessageSize(256 << 20);
  const auto stub =
      v1::Admin::NewStub(grpc::CreateCustomChannel(target.address, credentials, arguments));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  Reply reply;
  const absl::Status status =
      ForPeople(FromCoordd((stub.get()->*method)(&context, request, &reply)));
  if (status.ok()) return reply;
  return absl::Status(status.code(),
                      absl::StrCat("coordd at ", target.address,
                                   target.tls.enabled() ? " (TLS): " : ": ", status.message()));
}

}  // namespace

absl::StatusOr<v1::ServerState> FetchState(const Target& target, const std::string& job,
                                           absl::Duration timeout) {
  v1::GetStateRequest request;
  request.set_job(job);
  return Ask<v1::GetStateRequest, v1::ServerState>(target, timeout, request,
                                                   &v1::Admin::Stub::GetState);
}

absl::StatusOr<v1::TraceReply> FetchTrace(const Target& target, const v1::TraceRequest& request,
                                          absl::Duration timeout) {
  return Ask<v1::TraceRequest, v1::TraceReply>(target, timeout, request, &v1::Admin::Stub::Trace);
}

absl::StatusOr<v1::EventList> FetchEvents(const Target& target, const v1::GetEventsRequest& request,
                                          absl::Duration timeout) {
  return Ask<v1::GetEventsRequest, v1::EventList>(target, timeout, request,
                                                  &v1::Admin::Stub::GetEvents);
}

absl::StatusOr<v1::DismissReply> DismissWorkers(const Target& target,
                                                const v1::DismissRequest& request,
                                                absl::Duration timeout) {
  return Ask<v1::DismissRequest, v1::DismissReply>(target, timeout, request,
                                                   &v1::Admin::Stub::Dismiss);
}

}  // namespace coordd
