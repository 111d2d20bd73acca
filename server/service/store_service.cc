#include "server/service/store_service.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/one_line.h"
#include "common/base/tsan_annotations.h"
#include "common/grpc/grpc_status.h"
#include "common/protocol/proto_convert.h"
#include "server/door/caller.h"
#include "server/model/access_rules.h"
#include "server/service/caller_shares.h"

namespace coordd {
namespace {

// Whether memory of coordd's is to be kept for it.
bool Keeps(const decltype(StoreCall::request)& request) {
  return std::holds_alternative<StoreSet>(request) || std::holds_alternative<StoreAdd>(request) ||
         std::holds_alternative<StoreCompareSet>(request) ||
         std::holds_alternative<StoreAppend>(request);
}

int64_t AnswerSize(const StoreReply& reply) {
  size_t size = reply.shared != nullptr ? reply.shared->size() : reply.value.size();
  for (const auto& one : reply.found) size += one.has_value() ? one->size() : 0;
  return static_cast<int64_t>(size);
}

void GiveVersion(const StoreReply& reply, v1::StoreVersion* version) {
  ToProto(reply.version.value_or(StoreVersion()), version);
}

}  // namespace

// Whoever takes it out of StoreService::waiting_ answers it; Answer is its last use there.
class StoreService::Call final : public grpc::ServerUnaryReactor {
 public:
  // `caller`: null where it is not known; then the answer is an error.
  Call(CallId id, const char* method, absl::string_view name, StoreService& service,
       std::shared_ptr<const Caller> caller, std::string job, std::function<void(StoreReply&)> fill)
      : id_(id),
        method_(method),
        name_(name),
        service_(service),
        caller_(std::move(caller)),
        job_(std::move(job)),
        fill_(std::move(fill)) {
    COORDD_TSAN_RELEASE(&id_);
  }

  void Answer(StoreReply&& reply) {
    if (reply.status.ok() && caller_ != nullptr) {
      auto held = service_.shares_.HoldAnswer(*caller_, {name_, job_}, AnswerSize(reply));
      reply.status = held.status();
      if (held.ok()) held_ = *std::move(held);
    }
    // A wrong token; what the certificate does not allow was noted before.
    if (absl::IsUnauthenticated(reply.status)) {
      service_.audit_.Note({.call = coordd::Call::kStore,
                            .caller = caller_,
                            .job = job_,
                            .what = method_,
                            .outcome = reply.status});
    }
    if (absl::IsResourceExhausted(reply.status))
      service_.SayRefusal(method_, job_, caller_.get(), reply.status);
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
  const char* const method_;      // of metrics
  const absl::string_view name_;  // the protocol's
  StoreService& service_;
  const std::shared_ptr<const Caller> caller_;
  const std::string job_;
  CallerShares::AnswerBytes held_;
  const std::function<void(StoreReply&)> fill_;  // the result into gRPC's response
};

grpc::ServerUnaryReactor* StoreService::Set(grpc::CallbackServerContext* context,
                                            const v1::SetRequest* request,
                                            v1::SetResponse* response) {
  return Start(context, "set", request->caller(), StoreSet{request->key(), request->value()},
               [response](StoreReply& reply) { GiveVersion(reply, response->mutable_version()); });
}

grpc::ServerUnaryReactor* StoreService::Get(grpc::CallbackServerContext* context,
                                            const v1::GetRequest* request,
                                            v1::GetResponse* response) {
  return Start(context, "get", request->caller(), StoreGet{request->key()},
               [response](StoreReply& reply) {
                 if (reply.shared != nullptr) {
                   response->set_value(*reply.shared);
                 } else {
                   response->set_value(std::move(reply.value));
                 }
               });
}

grpc::ServerUnaryReactor* StoreService::Add(grpc::CallbackServerContext* context,
                                            const v1::AddRequest* request,
                                            v1::AddResponse* response) {
  return Start(context, "add", request->caller(), StoreAdd{request->key(), request->delta()},
               [response](StoreReply& reply) {
                 response->set_sum(reply.number);
                 GiveVersion(reply, response->mutable_version());
               });
}

grpc::ServerUnaryReactor* StoreService::DeletePrefix(grpc::CallbackServerContext* context,
                                                     const v1::DeletePrefixRequest* request,
                                                     v1::DeletePrefixResponse* response) {
  return Start(context, "delete_prefix", request->caller(), StoreDeletePrefix{request->prefix()},
               [response](StoreReply& reply) {
                 response->set_deleted(static_cast<int32_t>(reply.number));
                 GiveVersion(reply, response->mutable_version());
               });
}

grpc::ServerUnaryReactor* StoreService::CompareSet(grpc::CallbackServerContext* context,
                                                   const v1::CompareSetRequest* request,
                                                   v1::CompareSetResponse* response) {
  StoreCompareSet compare{request->key(), std::nullopt, request->desired()};
  if (request->has_expected()) compare.expected = request->expected();
  return Start(context, "compare_set", request->caller(), std::move(compare),
               [response](StoreReply& reply) {
                 std::optional<std::string>& value = reply.found.front();
                 if (value.has_value()) response->set_value(*std::move(value));
                 if (reply.version.has_value()) GiveVersion(reply, response->mutable_version());
               });
}

grpc::ServerUnaryReactor* StoreService::Append(grpc::CallbackServerContext* context,
                                               const v1::AppendRequest* request,
                                               v1::AppendResponse* response) {
  return Start(context, "append", request->caller(),
               StoreAppend{request->key(), request->value(), request->wants_value()},
               [response](StoreReply& reply) {
                 response->set_size_bytes(reply.number);
                 response->set_value(std::move(reply.value));
                 GiveVersion(reply, response->mutable_version());
               });
}

grpc::ServerUnaryReactor* StoreService::Delete(grpc::CallbackServerContext* context,
                                               const v1::DeleteRequest* request,
                                               v1::DeleteResponse* response) {
  return Start(context, "delete", request->caller(), StoreDelete{request->key()},
               [response](StoreReply& reply) {
                 response->set_deleted(reply.number > 0);
                 GiveVersion(reply, response->mutable_version());
               });
}

grpc::ServerUnaryReactor* StoreService::Look(grpc::CallbackServerContext* context,
                                             const v1::LookRequest* request,
                                             v1::LookResponse* response) {
  StoreLook look{{request->keys().begin(), request->keys().end()}, request->values()};
  return Start(context, "look", request->caller(), std::move(look), [response](StoreReply& reply) {
    response->set_epoch(ToInt(reply.version.value_or(StoreVersion()).epoch));
    for (std::optional<std::string>& one : reply.found) {
      v1::LookResponse::Found& found = *response->add_found();
      found.set_is_there(one.has_value());
      if (one.has_value()) found.set_value(*std::move(one));
    }
  });
}

grpc::ServerUnaryReactor* StoreService::Count(grpc::CallbackServerContext* context,
                                              const v1::CountRequest* request,
                                              v1::CountResponse* response) {
  return Start(context, "count", request->caller(), StoreCount{request->prefix()},
               [response](StoreReply& reply) { response->set_keys(reply.number); });
}

grpc::ServerUnaryReactor* StoreService::Start(grpc::CallbackServerContext* context,
                                              const char* method, const v1::StoreCaller& caller,
                                              decltype(StoreCall::request) request,
                                              std::function<void(StoreReply&)> fill) {
  const size_t bytes = BytesOf(request);
  const auto who = CallerOf(*context, connections_);
  read_.Of(context->peer()).Add(bytes);
  absl::Status refuse = who.status();
  if (refuse.ok()) refuse = MayCallWithToken((*who)->identity, coordd::Call::kStore, caller.job());
  if (!refuse.ok()) {
    audit_.Note({.call = coordd::Call::kStore,
                 .caller = who.value_or(nullptr),
                 .job = caller.job(),
                 .outcome = refuse});
  }
  if (refuse.ok() && context->deadline() == std::chrono::system_clock::time_point::max())
    refuse = absl::InvalidArgumentError("a call of the store needs a deadline; this one has none");
  if (refuse.ok() && Keeps(request)) refuse = memory_.Room(bytes);
  CallId id;
  Call* call = nullptr;
  {
    MutexLock lock(&mu_);
    id = CallId{++last_id_};
    call = new Call(id, method, Name(request), *this, who.value_or(nullptr), caller.job(),
                    std::move(fill));
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
  if (!inbox_.OfferAndTurn(
          Inbound(StoreCall{id, caller.job(), caller.token(), std::move(request), *who}))) {
    if (Call* mine = Take(id); mine != nullptr) {
      mine->Answer(
          {.call = id,
           .status = absl::UnavailableError("coordd has more to do than it can: try again"),
           .value = {}});
    }
  }
  return call;
}

void StoreService::SayRefusal(const char* method, const std::string& job, const Caller* caller,
                              const absl::Status& refused) {
  const absl::Time now = Clock::Real().Now();
  std::optional<std::string> more;
  {
    MutexLock lock(&mu_);
    if (refusal_lines_.size() >= sweep_at_) {
      std::erase_if(refusal_lines_,
                    [now](const auto& entry) { return entry.second.IsUnused(now); });
      sweep_at_ = 1024 + 2 * refusal_lines_.size();
    }
    more = refusal_lines_[job].Pass(now);
  }
  if (!more.has_value()) return;
  COORDD_LOG(kWarning, "job ", OneLine(job), ": a call of the store (", method,
             ") was refused: ", OneLine(refused.message()), *more,
             caller == nullptr ? std::string() : absl::StrCat(" (", CallerText(*caller), ")"));
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
