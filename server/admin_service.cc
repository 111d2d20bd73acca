#include "server/admin_service.h"

#include <grpcpp/grpcpp.h>

#include "common/tsan_annotations.h"

namespace coordd {
namespace {

// Deleted by gRPC once it is finished and done with.
class Call final : public grpc::ServerUnaryReactor {
 public:
  void Answer(grpc::Status status) {
    COORDD_TSAN_RELEASE(this);
    Finish(std::move(status));
  }

 private:
  void OnDone() override {
    COORDD_TSAN_ACQUIRE(this);
    delete this;
  }
};

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetState(grpc::CallbackServerContext*,
                                                 const v1::GetStateRequest* request,
                                                 v1::ServerState* response) {
  auto* call = new Call();
  // Accepted queries are always called, and `request` and `response` live until Finish.
  Query query = [this, request, response, call](const CoordinatorState& state, absl::Time now) {
    state.Describe(request->job(), now, response);
    complete_(response);
    call->Answer(grpc::Status::OK);
  };
  if (!inbox_.Offer(std::move(query))) {
    call->Answer(
        {grpc::StatusCode::UNAVAILABLE, "coordd is stopping, or has more to do than it can"});
  }
  return call;
}

}  // namespace coordd
