// Calls whose message cannot be read, which gRPC would answer with UNIMPLEMENTED and no word. (io)
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace coordd {

class ConnectionTable;

// Thread-safe. INVALID_ARGUMENT: what whoever calls `method`, "Store.Set", is told, if his message
// is none of its messages. Is a line of the log, too, with his address, as often as LogLimit lets
// it.
grpc::Status RefuseUnreadable(const grpc::CallbackServerContext& context,
                              const ConnectionTable& connections, absl::string_view method);

// What gRPC runs for a method of one message and one answer: `call`, or RefuseUnreadable. Made of
// gRPC's own handlers, as its generated services are.
template <class Request, class Response>
class ReadableCall final : public grpc::internal::MethodHandler {
 public:
  using Handler = grpc::internal::CallbackUnaryHandler<Request, Response>;
  using Call = std::function<grpc::ServerUnaryReactor*(grpc::CallbackServerContext*, const Request*,
                                                       Response*)>;

  ReadableCall(const std::string& method, const ConnectionTable& connections, Call call)
      : call_(std::move(call)),
        refusal_([method, &connections](grpc::CallbackServerContext* context, const Request*,
                                        Response*) {
          grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
          reactor->Finish(RefuseUnreadable(*context, connections, method));
          return reactor;
        }) {}

  void RunHandler(const HandlerParameter& parameter) override {
    if (parameter.status.ok()) return call_.RunHandler(parameter);
    refusal_.RunHandler(HandlerParameter(parameter.call, parameter.server_context,
                                         parameter.request, grpc::Status::OK,
                                         parameter.internal_data, parameter.call_requester));
  }
  // What it leaves in `data` is the same for both handlers.
  void* Deserialize(grpc_call* call, grpc_byte_buffer* bytes, grpc::Status* status,
                    void** data) override {
    return call_.Deserialize(call, bytes, status, data);
  }

 private:
  Handler call_, refusal_;
};

// `method`: "Store.Set". `call`: a member function of `service`; `connections` outlives it.
template <class Service, class Request, class Response>
grpc::internal::MethodHandler* MakeReadable(
    const std::string& method, const ConnectionTable& connections, Service* service,
    grpc::ServerUnaryReactor* (Service::*call)(grpc::CallbackServerContext*, const Request*,
                                               Response*)) {
  return new ReadableCall<Request, Response>(
      method, connections,
      [service, call](grpc::CallbackServerContext* context, const Request* request,
                      Response* response) { return (service->*call)(context, request, response); });
}

}  // namespace coordd
