// The gRPC service `Admin`. (io)
#pragma once

#include <functional>
#include <string>

#include "coordd/v1/admin.grpc.pb.h"
#include "server/inbox.h"

namespace coordd {

// Thread-safe.
class AdminService final : public v1::Admin::CallbackService {
 public:
  // `complete` adds what the state does not know: version, addresses, uptime.
  AdminService(Inbox& inbox, std::function<void(v1::ServerState*)> complete)
      : inbox_(inbox), complete_(std::move(complete)) {}

 private:
  // Answered on the coordinator thread. UNAVAILABLE: coordd is stopping or busy: try again.
  grpc::ServerUnaryReactor* GetState(grpc::CallbackServerContext* context,
                                     const v1::GetStateRequest* request,
                                     v1::ServerState* response) override;

  Inbox& inbox_;
  const std::function<void(v1::ServerState*)> complete_;
};

}  // namespace coordd
