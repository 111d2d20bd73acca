// The gRPC service `Admin`. (io)
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "coordd/v1/admin.grpc.pb.h"
#include "server/door/connection_table.h"
#include "server/door/read_bytes.h"
#include "server/model/access_rules.h"
#include "server/model/effects.h"
#include "server/model/event_log.h"
#include "server/service/audit_log.h"
#include "server/service/inbox.h"
#include "server/service/readable_calls.h"
#include "server/service/state_teller.h"

namespace coordd {

class CallerShares;

// Thread-safe.
class AdminService final : public v1::Admin::CallbackService {
 public:
  // `complete` adds what the state does not know: version, addresses, uptime.
  AdminService(ReadBytes& read, const ConnectionTable& connections, CallerShares& shares,
               Inbox& inbox, const EventLog& events, AuditLog& audit,
               std::function<void(v1::ServerState*)> complete)
      : complete_(std::move(complete)),
        read_(read),
        connections_(connections),
        shares_(shares),
        inbox_(inbox),
        events_(events),
        audit_(audit),
        teller_(shares, inbox) {
    // In the order of the .proto file.
    MarkMethodCallback(0,
                       MakeReadable("Admin.GetState", connections, this, &AdminService::GetState));
    MarkMethodCallback(1, MakeReadable("Admin.Trace", connections, this, &AdminService::Trace));
    MarkMethodCallback(
        2, MakeReadable("Admin.GetEvents", connections, this, &AdminService::GetEvents));
    MarkMethodCallback(
        3, MakeReadable("Admin.ReportExits", connections, this, &AdminService::ReportExits));
    MarkMethodCallback(4, MakeReadable("Admin.Dismiss", connections, this, &AdminService::Dismiss));
  }

  // For the coordinator thread.
  void CarryOut(TraceAnswer&& answer);
  void CarryOut(ExitsAnswer&& answer);
  void CarryOut(DismissAnswer&& answer);
  // Answers every trace that is under way, and every one that still comes, with `status`.
  void CloseAll(const absl::Status& status);

 private:
  class TraceCallReactor;  // deleted by gRPC's OnDone

  // Decided on the coordinator thread, for all jobs in parts over turns. UNAVAILABLE: coordd is
  // stopping or busy: try again.
  grpc::ServerUnaryReactor* GetState(grpc::CallbackServerContext* context,
                                     const v1::GetStateRequest* request,
                                     v1::ServerState* response) override;
  grpc::ServerUnaryReactor* Trace(grpc::CallbackServerContext* context,
                                  const v1::TraceRequest* request,
                                  v1::TraceReply* response) override;
  // Answered on the coordinator thread.
  grpc::ServerUnaryReactor* ReportExits(grpc::CallbackServerContext* context,
                                        const v1::ReportExitsRequest* request,
                                        v1::ReportExitsReply* response) override;
  // Answered on the coordinator thread, once it is stored.
  grpc::ServerUnaryReactor* Dismiss(grpc::CallbackServerContext* context,
                                    const v1::DismissRequest* request,
                                    v1::DismissReply* response) override;
  // Answered at once, or, where it depends on the job, on the coordinator thread.
  grpc::ServerUnaryReactor* GetEvents(grpc::CallbackServerContext* context,
                                      const v1::GetEventsRequest* request,
                                      v1::EventList* response) override;
  // Who is calling; counts what was read.
  absl::StatusOr<std::shared_ptr<const Caller>> Begin(const grpc::CallbackServerContext& context,
                                                      const google::protobuf::Message& request);
  // The call, when nobody has answered it yet: the caller answers it now.
  TraceCallReactor* Take(CallId id);
  void Cancel(CallId id);

  // Constant after construction.
  const std::function<void(v1::ServerState*)> complete_;

  // Thread-safe by themselves.
  ReadBytes& read_;
  const ConnectionTable& connections_;
  CallerShares& shares_;
  Inbox& inbox_;
  const EventLog& events_;
  AuditLog& audit_;
  StateTeller teller_;

  // Guarded by mu_.
  Mutex mu_;
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;  // negative: the store's calls are numbered from 1
  std::map<CallId, TraceCallReactor*> tracing_ ABSL_GUARDED_BY(mu_);
  // Whatever the inbox has taken of these is answered.
  std::map<CallId, std::function<void(const ExitsAnswer&)>> reporting_ ABSL_GUARDED_BY(mu_);
  std::map<CallId, std::function<void(DismissAnswer&&)>> dismissing_ ABSL_GUARDED_BY(mu_);
  absl::Status refuse_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
