#include "server/service/store_service.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/grpc_status.h"

namespace coordd {
namespace {

// The keys and values of a request.
size_t BytesOf(const StoreSet& set) { return set.key.size() + set.value.size(); }
size_t BytesOf(const StoreGet& get) { return get.key.size(); }
size_t BytesOf(const StoreAdd& add) { return add.key.size(); }
size_t BytesOf(const StoreDeletePrefix& all) { return all.prefix.size(); }

}  // namespace

// Whoever takes it out of StoreService::waiting_ answers it; Answer is its last use there.
class StoreService::Call final : public grpc::ServerUnaryReactor {
 public:
  Call(CallId id, const char* method, StoreService& service, std::function<void(StoreReply&)> fill)
      : id_(id), method_(method), service_(service), fill_(std::move(fill)) {
    COORDD_TSAN_RELEASE(&id_);
  }

  void Answer(StoreReply&& reply) {
    service_.metrics_.OnStoreCallEnded(method_, reply.status.code());
    if (reply.status.ok()) fill_(reply);
    COORDD_TSAN_RELEASE(this);
    Finish(ToGrpc(reply.status));
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
  const char* const method_;
  StoreService& service_;
  const std::function<void(StoreReply&)> fill_;  // the result into gRPC's response
};

grpc::ServerUnaryReactor* StoreService::Set(grpc::CallbackServerContext* context,
                                            const v1::SetRequest* request, v1::SetResponse*) {
  return Start(context, "set", request->caller(), StoreSet{request->key(), request->value()},
               [](StoreReply&) {});
}

grpc::ServerUnaryReactor* StoreService::Get(grpc::CallbackServerContext* context,
                                            const v1::GetRequest* request,
                                            v1::GetResponse* response) {
  return Start(context, "get", request->caller(), StoreGet{request->key()},
               [response](StoreReply& reply) { response->set_value(std::move(reply.value)); });
}

grpc::ServerUnaryReactor* StoreService::Add(grpc::CallbackServerContext* context,
                                            const v1::AddRequest* request,
                                            v1::AddResponse* response) {
  return Start(context, "add", request->caller(), StoreAdd{request->key(), request->delta()},
               [response](StoreReply& reply) { response->set_sum(reply.number); });
}

grpc::ServerUnaryReactor* StoreService::DeletePrefix(grpc::CallbackServerContext* context,
                                                     const v1::DeletePrefixRequest* request,
                                                     v1::DeletePrefixResponse* response) {
  return Start(
      context, "delete_prefix", request->caller(), StoreDeletePrefix{request->prefix()},
      [response](StoreReply& reply) { response->set_deleted(static_cast<int32_t>(reply.number)); });
}

grpc::ServerUnaryReactor* StoreService::Start(grpc::CallbackServerContext* context,
                                              const char* method, const v1::StoreCaller& caller,
                                              decltype(StoreCall::request) request,
                                              std::function<void(StoreReply&)> fill) {
  const size_t bytes = std::visit([](const auto& one) { return BytesOf(one); }, request);
  read_.Of(context->peer()).Add(bytes);
  absl::Status refuse;
  if (context->deadline() == std::chrono::system_clock::time_point::max())
    refuse = absl::InvalidArgumentError("a call of the store needs a deadline; this one has none");
  const bool keeps =
      std::holds_alternative<StoreSet>(request) || std::holds_alternative<StoreAdd>(request);
  if (keeps && refuse.ok()) refuse = memory_.Room(bytes);
  CallId id;
  Call* call = nullptr;
  {
    MutexLock lock(&mu_);
    id = CallId{++last_id_};
    call = new Call(id, method, *this, std::move(fill));
    if (refuse.ok()) refuse = refuse_;
    if (refuse.ok() && waiting_.size() >= kMaxWaitingCalls) {
      refuse = absl::ResourceExhaustedError(
          absl::StrCat(kMaxWaitingCalls, " calls of the store are waiting already"));
    }
    if (refuse.ok()) waiting_.emplace(id, call);
  }
  metrics_.OnStoreCallStarted();
  if (!refuse.ok()) {
    call->Answer({.call = id, .status = refuse, .value = {}});
    return call;
  }
  // From here on the coordinator may have answered; gRPC deletes the call only after it was bound,
  // which is after the return.
  if (!inbox_.Offer(Inbound(StoreCall{id, caller.job(), caller.token(), std::move(request)}))) {
    if (Call* mine = Take(id); mine != nullptr) {
      mine->Answer(
          {.call = id,
           .status = absl::UnavailableError("coordd has more to do than it can: try again"),
           .value = {}});
    }
  }
  return call;
}

StoreService::Call* StoreService::Take(CallId id) {
  MutexLock lock(&mu_);
  const auto found = waiting_.find(id);
  if (found == waiting_.end()) return nullptr;
  Call* call = found->second;
  waiting_.erase(found);
  return call;
}

void StoreService::CarryOut(StoreReply&& reply) {
  if (Call* call = Take(reply.call); call != nullptr) call->Answer(std::move(reply));
}

void StoreService::Cancel(CallId id) {
  Call* call = Take(id);
  if (call == nullptr) return;
  inbox_.Push(Inbound(CallCancelled{id}));
  call->Answer({.call = id,
                .status = absl::CancelledError("the caller went away, or its deadline passed"),
                .value = {}});
}

void StoreService::CloseAll(const absl::Status& status) {
  std::map<CallId, Call*> all;
  {
    MutexLock lock(&mu_);
    refuse_ = status;
    all.swap(waiting_);
  }
  for (const auto& [id, call] : all) call->Answer({.call = id, .status = status, .value = {}});
}

}  // namespace coordd
