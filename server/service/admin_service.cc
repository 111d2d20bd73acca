#include "server/service/admin_service.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/counted.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/grpc_status.h"
#include "server/door/caller.h"
#include "server/service/caller_shares.h"

namespace coordd {
namespace {

// Deleted by gRPC once it is finished and done with.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // Unless the caller does not read what it is answered: then it gets an error instead.
  void AnswerWith(google::protobuf::Message& response, const Caller& caller,
                  const CallerShares::Asked& asked, CallerShares& shares) {
    auto held = shares.HoldAnswer(caller, asked, static_cast<int64_t>(response.ByteSizeLong()));
    if (!held.ok()) {
      response.Clear();
      Answer(ToGrpc(held.status()));
      return;
    }
    held_ = *std::move(held);
    Answer(grpc::Status::OK);
  }
  void Answer(grpc::Status status) {
    COORDD_TSAN_RELEASE(this);
    Finish(std::move(status));
  }
  // Calls `what`, which answers, on a thread of gRPC's: an answer may be large, and is written out
  // by whoever gives it.
  void Elsewhere(std::function<void()> what) {
    COORDD_TSAN_RELEASE(&alarm_);
    alarm_.Set(std::chrono::system_clock::now(), [this, what = std::move(what)](bool) {
      COORDD_TSAN_ACQUIRE(&alarm_);
      what();
    });
  }

 private:
  void OnDone() override {
    COORDD_TSAN_ACQUIRE(this);
    delete this;
  }

  CallerShares::AnswerBytes held_;
  grpc::Alarm alarm_;
};

std::string WhatIsTraced(const v1::TraceRequest& request) {
  return request.steps() > 0 ? absl::StrCat("trace ", Counted(request.steps(), "step"))
                             : absl::StrCat("trace ", request.seconds(), " s");
}

std::string WhatIsDismissed(const v1::DismissRequest& request) {
  const char* action = request.action() == v1::DISMISS_ACTION_EVICT   ? "evict"
                       : request.action() == v1::DISMISS_ACTION_DRAIN ? "drain"
                                                                      : "lift the drain of";
  std::string who = request.has_rank()   ? absl::StrCat("rank ", request.rank())
                    : request.has_node() ? absl::StrCat("node ", request.node())
                                         : absl::StrJoin(request.launches(), ", ");
  return absl::StrCat(action, " ", who, request.force() ? ", by force" : "",
                      request.asked_by().empty() ? "" : ", as ", request.asked_by());
}

}  // namespace

// Whoever takes it out of AdminService::tracing_ answers it; Answer is its last use there.
class AdminService::TraceCallReactor final : public grpc::ServerUnaryReactor {
 public:
  TraceCallReactor(CallId id, AdminService& service, v1::TraceReply* response, AuditEntry entry)
      : id_(id), service_(service), response_(response), entry_(std::move(entry)) {
    COORDD_TSAN_RELEASE(&id_);
  }

  void Answer(TraceAnswer&& answer) {
    if (answer.status.ok()) *response_ = std::move(answer.reply);
    entry_.outcome = answer.status;
    service_.audit_.Note(entry_);
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
  AuditEntry entry_;
};

absl::StatusOr<std::shared_ptr<const Caller>> AdminService::Begin(
    const grpc::CallbackServerContext& context, const google::protobuf::Message& request) {
  auto caller = CallerOf(context, connections_);
  read_.Of(context.peer()).Add(request.ByteSizeLong());
  return caller;
}

grpc::ServerUnaryReactor* AdminService::Trace(grpc::CallbackServerContext* context,
                                              const v1::TraceRequest* request,
                                              v1::TraceReply* response) {
  const auto caller = Begin(*context, *request);
  CallId id;
  TraceCallReactor* call = nullptr;
  absl::Status refuse = caller.status();
  {
    MutexLock lock(&mu_);
    id = CallId{--last_id_};
    call = new TraceCallReactor(id, *this, response,
                                {.call = Call::kTrace,
                                 .caller = caller.value_or(nullptr),
                                 .job = request->job(),
                                 .what = WhatIsTraced(*request)});
    if (refuse.ok()) refuse = refuse_;
    if (refuse.ok()) tracing_.emplace(id, call);
  }
  if (!refuse.ok()) {
    call->Answer({.call = id, .status = refuse});
    return call;
  }
  // From here on the coordinator may have answered; gRPC deletes the call only after it was bound,
  // which is after the return.
  if (!inbox_.Offer(Inbound(TraceCall{id, *request, *caller}))) {
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
  auto* call = new UnaryCall();
  const auto caller = Begin(*context, *request);
  if (!caller.ok()) {
    call->Answer(ToGrpc(caller.status()));
    return call;
  }
  const auto answer = [this, request, response, call, who = *caller](const absl::Status& status) {
    if (status.ok()) {
      complete_(response);
      return call->AnswerWith(*response, *who, {Name(Call::kGetState), request->job()}, shares_);
    }
    audit_.Note({.call = Call::kGetState, .caller = who, .job = request->job(), .outcome = status});
    call->Answer(ToGrpc(status));
  };
  // `request` and `response` live until Finish.
  if (request->job().empty()) {
    teller_.Tell({.caller = *caller,
                  .request = request,
                  .state = response,
                  .is_cancelled = [context] { return context->IsCancelled(); },
                  .finish =
                      [call, answer](const absl::Status& status) {
                        call->Elsewhere([answer, status] { answer(status); });
                      }});
    return call;
  }
  // Accepted queries are always called.
  Query query = [this, request, response, answer, who = *caller](const CoordinatorState& state,
                                                                 absl::Time now) {
    const CallerShares::Asked asked = {Name(Call::kGetState), request->job()};
    absl::Status status;
    status.Update(shares_.InTurn(
        *who, asked, [&] { status = state.DescribeTo(*who, *request, now, response); }));
    answer(status);
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
  auto* call = new UnaryCall();
  const auto caller = Begin(*context, *request);
  const absl::Status allowed =
      caller.ok() ? MayCallWithToken((*caller)->identity, Call::kReportExits, request->job())
                  : caller.status();
  if (!allowed.ok()) {
    audit_.Note({.call = Call::kReportExits,
                 .caller = caller.value_or(nullptr),
                 .job = request->job(),
                 .outcome = allowed});
    call->Answer(ToGrpc(allowed));
    return call;
  }
  CallId id;
  {
    MutexLock lock(&mu_);
    id = CallId{--last_id_};
    AuditEntry entry{.call = Call::kReportExits, .caller = *caller, .job = request->job()};
    reporting_[id] = [this, call, response,
                      entry = std::move(entry)](const ExitsAnswer& answer) mutable {
      entry.outcome = answer.status;
      if (absl::IsUnauthenticated(answer.status)) audit_.Note(entry);
      response->set_known(answer.known);
      call->Answer(ToGrpc(answer.status));
    };
  }
  if (!inbox_.Offer(Inbound(ExitsReported{id, *request, *caller}))) {
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
  auto* call = new UnaryCall();
  const auto caller = Begin(*context, *request);
  if (!caller.ok()) {
    call->Answer(ToGrpc(caller.status()));
    return call;
  }
  DismissCall in{.call = {}, .request = *request, .caller = *caller};
  // What a caller says of itself does not stand for who it is.
  in.request.set_asked_by(AskedBy((*caller)->identity, request->asked_by()));
  AuditEntry entry{.call = Call::kDismiss,
                   .caller = *caller,
                   .job = request->job(),
                   .what = WhatIsDismissed(*request)};
  CallId id;
  {
    MutexLock lock(&mu_);
    id = CallId{--last_id_};
    dismissing_[id] = [this, call, response, entry = std::move(entry)](DismissAnswer&& answer) {
      AuditEntry done = entry;
      if (done.job.empty()) done.job = answer.reply.job();
      done.outcome = answer.status;
      audit_.Note(done);
      *response = std::move(answer.reply);
      call->Answer(ToGrpc(answer.status));
    };
  }
  in.call = id;
  if (!inbox_.Offer(Inbound(std::move(in)))) {
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
  auto* call = new UnaryCall();
  auto caller = Begin(*context, *request);
  absl::Status refuse = caller.status();
  if (refuse.ok() && (request->after() < 0 || request->limit() < 0)) {
    refuse =
        absl::InvalidArgumentError(absl::StrCat("events after ", request->after(), ", at most ",
                                                request->limit(), ": expected no negative number"));
  }
  if (refuse.ok() && GrantOf((*caller)->identity.role, Call::kGetEvents) == Grant::kAny) {
    // It takes time, if no turn: so much of it as each has.
    const CallerShares::Asked asked = {Name(Call::kGetEvents), request->job()};
    const absl::Status had =
        shares_.InTurn(**caller, asked, [&] { *response = events_.Read(*request); });
    if (had.ok()) {
      call->AnswerWith(*response, **caller, asked, shares_);
    } else {
      call->Answer(ToGrpc(had));
    }
    return call;
  }
  if (refuse.ok() && request->job().empty()) {
    refuse = MayCall((*caller)->identity, Call::kGetEvents, {});
    if (refuse.ok()) refuse = absl::InvalidArgumentError("expected the name of a job of yours");
  }
  if (!refuse.ok()) {
    audit_.Note({.call = Call::kGetEvents, .caller = caller.value_or(nullptr), .outcome = refuse});
    call->Answer(ToGrpc(refuse));
    return call;
  }
  Query query = [this, request, response, call, who = *std::move(caller)](
                    const CoordinatorState& state, absl::Time /*now*/) {
    const CallerShares::Asked asked = {Name(Call::kGetEvents), request->job()};
    absl::Status status = state.MayCall(*who, Call::kGetEvents, request->job(), request->token());
    if (status.ok())
      status = shares_.InTurn(*who, asked, [&] { *response = events_.Read(*request); });
    if (status.ok()) {
      call->AnswerWith(*response, *who, asked, shares_);
      return;
    }
    audit_.Note(
        {.call = Call::kGetEvents, .caller = who, .job = request->job(), .outcome = status});
    call->Answer(ToGrpc(status));
  };
  if (!inbox_.Offer(std::move(query))) {
    call->Answer(
        {grpc::StatusCode::UNAVAILABLE, "coordd is stopping, or has more to do than it can"});
  }
  return call;
}

}  // namespace coordd
