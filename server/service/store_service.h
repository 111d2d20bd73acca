// The gRPC service `Store`: takes calls to the coordinator thread and its answers back. (io)
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/base/log_limit.h"
#include "common/base/memory_limit.h"
#include "common/base/mutex.h"
#include "coordd/v1/store.grpc.pb.h"
#include "server/door/connection_table.h"
#include "server/door/read_bytes.h"
#include "server/job/coordinator_state.h"
#include "server/metrics/server_metrics.h"
#include "server/service/audit_log.h"
#include "server/service/inbox.h"
#include "server/service/readable_calls.h"

namespace coordd {

class CallerShares;

// Thread-safe.
class StoreService final : public v1::Store::CallbackService {
 public:
  // A generation of the largest job may wait for each other's addresses all at once.
  static constexpr size_t kMaxWaitingCalls = 1 << 18;

  StoreService(ReadBytes& read, const ConnectionTable& connections, CallerShares& shares,
               Inbox& inbox, ServerMetrics& metrics, AuditLog& audit)
      : read_(read),
        connections_(connections),
        shares_(shares),
        inbox_(inbox),
        metrics_(metrics),
        audit_(audit) {
    // In the order of the .proto file.
    MarkMethodCallback(0, MakeReadable("Store.Set", connections, this, &StoreService::Set));
    MarkMethodCallback(1, MakeReadable("Store.Get", connections, this, &StoreService::Get));
    MarkMethodCallback(2, MakeReadable("Store.Add", connections, this, &StoreService::Add));
    MarkMethodCallback(
        3, MakeReadable("Store.DeletePrefix", connections, this, &StoreService::DeletePrefix));
    MarkMethodCallback(
        4, MakeReadable("Store.CompareSet", connections, this, &StoreService::CompareSet));
    MarkMethodCallback(5, MakeReadable("Store.Append", connections, this, &StoreService::Append));
    MarkMethodCallback(6, MakeReadable("Store.Delete", connections, this, &StoreService::Delete));
    MarkMethodCallback(7, MakeReadable("Store.Look", connections, this, &StoreService::Look));
    MarkMethodCallback(8, MakeReadable("Store.Count", connections, this, &StoreService::Count));
  }

  // For the coordinator thread.
  void CarryOut(StoreReply&& reply);

  // Answers every call, and every one that still comes, with `status`.
  void CloseAll(const absl::Status& status);

 private:
  class Call;  // one unary call; deleted by gRPC's OnDone

  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context, const v1::SetRequest* request,
                                v1::SetResponse* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
                                v1::GetResponse* response) override;
  grpc::ServerUnaryReactor* Add(grpc::CallbackServerContext* context, const v1::AddRequest* request,
                                v1::AddResponse* response) override;
  grpc::ServerUnaryReactor* DeletePrefix(grpc::CallbackServerContext* context,
                                         const v1::DeletePrefixRequest* request,
                                         v1::DeletePrefixResponse* response) override;
  grpc::ServerUnaryReactor* CompareSet(grpc::CallbackServerContext* context,
                                       const v1::CompareSetRequest* request,
                                       v1::CompareSetResponse* response) override;
  grpc::ServerUnaryReactor* Append(grpc::CallbackServerContext* context,
                                   const v1::AppendRequest* request,
                                   v1::AppendResponse* response) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const v1::DeleteRequest* request,
                                   v1::DeleteResponse* response) override;
  grpc::ServerUnaryReactor* Look(grpc::CallbackServerContext* context,
                                 const v1::LookRequest* request,
                                 v1::LookResponse* response) override;
  grpc::ServerUnaryReactor* Count(grpc::CallbackServerContext* context,
                                  const v1::CountRequest* request,
                                  v1::CountResponse* response) override;

  // Hands the call to the coordinator, or refuses it.
  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context, const char* method,
                                  const v1::StoreCaller& caller,
                                  decltype(StoreCall::request) request,
                                  std::function<void(StoreReply&)> fill);
  // The call, when nobody has answered it yet: the caller answers it now.
  Call* Take(CallId id);
  // A line of the log, for each job as often as LogLimit lets it: what a job may have is spent.
  void SayRefusal(const char* method, const std::string& job, const Caller* caller,
                  const absl::Status& refused);
  void Cancel(CallId id);

  // Thread-safe by itself.
  ReadBytes& read_;
  const ConnectionTable& connections_;
  CallerShares& shares_;
  Inbox& inbox_;
  ServerMetrics& metrics_;
  AuditLog& audit_;
  MemoryGuard memory_;

  // Guarded by mu_.
  Mutex mu_;
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<CallId, Call*> waiting_ ABSL_GUARDED_BY(mu_);
  absl::Status refuse_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, LogLimit> refusal_lines_ ABSL_GUARDED_BY(mu_);  // by job
  size_t sweep_at_ ABSL_GUARDED_BY(mu_) = 1024;  // refusal_lines_, when there are so many
};

}  // namespace coordd
