#include "server/service/admin_service.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/grpc_status.h"

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

// Whoever takes it out of AdminService::tracing_ answers it; Answer is its last use there.
class AdminService::TraceCallReactor final : public grpc::ServerUnaryReactor {
 public:
  TraceCallReactor(CallId id, AdminService& service, v1::TraceReply* response)
      : id_(id), service_(service), response_(response) {
    COORDD_TSAN_RELEASE(&id_);
  }

  void Answer(TraceAnswer&& answer) {
    if (answer.status.ok()) *response_ = std::move(answer.reply);
    COORDD_TSAN_RELEASE(this);
    Finish(ToGrpc(answer.status));
  }

 private:
  void OnCancel() override {
    COORDD_TSAN_ACQUIRE(&id_);
    service_.Cancel(id_);
  }
  void OnDone() override {
    COORDD_TSAN_ACQUIRE(this);
    delete this;
  }

  const CallId id_;
  AdminService& service_;
  v1::TraceReply* const response_;
};

void AdminService::NoteRead(const grpc::CallbackServerContext& context,
                            const google::protobuf::Message& request) {
  read_.Of(context.peer()).Add(request.ByteSizeLong());
}

grpc::ServerUnaryReactor* AdminService::Trace(grpc::CallbackServerContext* context,
                                              const v1::TraceRequest* request,
                                              v1::TraceReply* response) {
  NoteRead(*context, *request);
  CallId id;
  TraceCallReactor* call = nullptr;
  absl::Status refuse;
  {
    MutexLock lock(&mu_);
    id = CallId{--last_id_};
    call = new TraceCallReactor(id, *this, response);
    refuse = refuse_;
    if (refuse.ok()) tracing_.emplace(id, call);
  }
  if (!refuse.ok()) {
    call->Answer({.call = id, .status = refuse});
    return call;
  }
  // From here on the coordinator may have answered; gRPC deletes the call only after it was bound,
  // which is after the return.
  if (!inbox_.Offer(Inbound(TraceCall{id, *request}))) {
    if (TraceCallReactor* mine = Take(id); mine != nullptr) {
      mine->Answer(
          {.call = id,
           .status = absl::UnavailableError("coordd has more to do than it can: try again")});
    }
  }
  return call;
}

AdminService::TraceCallReactor* AdminService::Take(CallId id) {
  MutexLock lock(&mu_);
  const auto found = tracing_.find(id);
  if (found == tracing_.end()) return nullptr;
  TraceCallReactor* call = found->second;
  tracing_.erase(found);
  return call;
}

void AdminService::CarryOut(TraceAnswer&& answer) {
  if (TraceCallReactor* call = Take(answer.call); call != nullptr) call->Answer(std::move(answer));
}

void AdminService::Cancel(CallId id) {
  TraceCallReactor* call = Take(id);
  if (call == nullptr) return;
  inbox_.Push(Inbound(CallCancelled{id}));
  call->Answer(
      {.call = id, .status = absl::CancelledError("the caller went away, or its deadline passed")});
}

void AdminService::CloseAll(const absl::Status& status) {
  std::map<CallId, TraceCallReactor*> all;
  {
    MutexLock lock(&mu_);
    refuse_ = status;
    all.swap(tracing_);
  }
  for (const auto& [id, call] : all) call->Answer({.call = id, .status = status});
}

grpc::ServerUnaryReactor* AdminService::GetState(grpc::CallbackServerContext* context,
                                                 const v1::GetStateRequest* request,
                                                 v1::ServerState* response) {
  NoteRead(*context, *request);
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

grpc::ServerUnaryReactor* AdminService::ReportExits(grpc::CallbackServerContext* context,
                                                    const v1::ReportExitsRequest* request,
                                                    v1::ReportExitsReply* response) {
  NoteRead(*context, *request);
  auto* call = new Call();
  CallId id;
  {
    MutexLock lock(&mu_);
    id = CallId{--last_id_};
    reporting_[id] = [call, response](const ExitsAnswer& answer) {
      response->set_known(answer.known);
      call->Answer(ToGrpc(answer.status));
    };
  }
  if (!inbox_.Offer(Inbound(ExitsReported{id, *request}))) {
    CarryOut(ExitsAnswer{
        .call = id,
        .status = absl::UnavailableError("coordd is stopping, or has more to do than it can")});
  }
  return call;
}

void AdminService::CarryOut(ExitsAnswer&& answer) {
  std::function<void(const ExitsAnswer&)> finish;
  {
    MutexLock lock(&mu_);
    const auto found = reporting_.find(answer.call);
    if (found == reporting_.end()) return;
    finish = std::move(found->second);
    reporting_.erase(found);
  }
  finish(answer);
}

grpc::ServerUnaryReactor* AdminService::Dismiss(grpc::CallbackServerContext* context,
                                                const v1::DismissRequest* request,
                                                v1::DismissReply* response) {
  NoteRead(*context, *request);
  auto* call = new Call();
  CallId id;
  {
    MutexLock lock(&mu_);
    id = CallId{--last_id_};
    dismissing_[id] = [call, response](DismissAnswer&& answer) {
      *response = std::move(answer.reply);
      call->Answer(ToGrpc(answer.status));
    };
  }
  if (!inbox_.Offer(Inbound(DismissCall{id, *request}))) {
    CarryOut(DismissAnswer{
        .call = id,
        .status = absl::UnavailableError("coordd is stopping, or has more to do than it can")});
  }
  return call;
}

void AdminService::CarryOut(DismissAnswer&& answer) {
  std::function<void(DismissAnswer &&)> finish;
  {
    MutexLock lock(&mu_);
    const auto found = dismissing_.find(answer.call);
    if (found == dismissing_.end()) return;
    finish = std::move(found->second);
    dismissing_.erase(found);
  }
  finish(std::move(answer));
}

grpc::ServerUnaryReactor* AdminService::GetEvents(grpc::CallbackServerContext* context,
                                                  const v1::GetEventsRequest* request,
                                                  v1::EventList* response) {
  NoteRead(*context, *request);
  auto* call = new Call();
  if (request->after() < 0 || request->limit() < 0) {
    call->Answer({grpc::StatusCode::INVALID_ARGUMENT,
                  absl::StrCat("events after ", request->after(), ", at most ", request->limit(),
                               ": expected no negative number")});
    return call;
  }
  *response = events_.Read(*request);
  call->Answer(grpc::Status::OK);
  return call;
}

}  // namespace coordd
