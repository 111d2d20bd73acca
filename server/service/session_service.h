// The gRPC service `Coordinator`: opens sessions and finds them again. Decodes, enqueues, encodes;
// decides nothing. (io)
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/log_limit.h"
#include "common/base/mutex.h"
#include "coordd/v1/session.grpc.pb.h"
#include "server/door/connection_table.h"
#include "server/service/session.h"

namespace coordd {

// Thread-safe. gRPC threads open sessions, whoever has the coordinator's turn carries out its
// decisions.
class SessionService final
    : public v1::Coordinator::WithRawCallbackMethod_Session<
          v1::Coordinator::WithRawCallbackMethod_NodeSession<v1::Coordinator::Service>> {
 public:
  // From the stream's start to its first message, and from the decision to close a session to its
  // end: then it is cut. Long enough for a lost packet or two.
  static constexpr absl::Duration kTimeout = absl::Seconds(5);
  // Twice the workers of the largest job: they may all reconnect while their old streams die.
  static constexpr size_t kMaxSessions = 1 << 18;
  // Of one identity, unless it is an operator's: the largest job and a half.
  static constexpr size_t kMaxSessionsOfOne = kMaxSessions / 4 * 3;

  struct Options {
    bool any_metrics_address = false;  // as MetricsAddressRule
    UnreadBounds unread = {};
  };

  SessionService(Clock& clock, ReadBytes& read, const ConnectionTable& connections, Inbox& inbox,
                 ServerMetrics& metrics, AuditLog& audit, const Options& options);

  // For whoever has the turn; see CoordinatorOutlets. What goes to node sessions goes out at the
  // end of its turn (Tick), together.
  void CarryOut(const Deliver& deliver);
  void CarryOut(const CloseSession& close);
  void OnSessionEnded(SessionId id);
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;

  size_t size() const;           // streams that are open, of workers and of relays
  size_t node_sessions() const;  // of them, of relays

  // Closes every session, and every one that is still opened, with `status`.
  void CloseAll(const absl::Status& status);

 private:
  using Reactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;
  Reactor* Session(grpc::CallbackServerContext* context) override;
  Reactor* NodeSession(grpc::CallbackServerContext* context) override;
  Reactor* Open(bool of_node, grpc::CallbackServerContext* context);
  coordd::Session::Stream StreamOf(grpc::CallbackServerContext* context,
                                   std::shared_ptr<const Caller> caller);
  std::shared_ptr<class Session> Find(SessionId id) const;
  void WatchClosing(SessionId id);
  // Of a session that is closing because of what it has not read.
  void NoteFull(const class Session& session);
  void NoteWrong(const class Session& session, const absl::Status& why);
  void FlushLater(std::shared_ptr<class Session> session);
  void Flush();
  void Forget(SessionId id);
  absl::Status HasRoomLocked(const Identity& who) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Thread-safe by itself.
  Clock& clock_;
  ReadBytes& read_;
  const ConnectionTable& connections_;
  Inbox& inbox_;
  ServerMetrics& metrics_;
  AuditLog& audit_;
  MetricsAddressRule metrics_addresses_;
  UnreadAnswers unread_;

  // Guarded by mu_.
  mutable Mutex mu_;
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<SessionId, std::shared_ptr<class Session>> sessions_ ABSL_GUARDED_BY(mu_);
  // When a session must have joined, or must be gone: in order of time, since each entry is
  // kTimeout after it was made.
  struct Watch {
    absl::Time deadline;
    SessionId id;
    enum { kJoin, kClose } what;
  };
  std::deque<Watch> watches_ ABSL_GUARDED_BY(mu_);
  absl::Status refuse_ ABSL_GUARDED_BY(mu_);  // not OK: every new session gets it
  std::map<std::string, size_t> of_identity_ ABSL_GUARDED_BY(mu_);  // how many; none is 0
  size_t node_sessions_ ABSL_GUARDED_BY(mu_) = 0;
  LogLimit full_limit_ ABSL_GUARDED_BY(mu_), wrong_limit_ ABSL_GUARDED_BY(mu_);

  // Touched by whoever has the turn only: node sessions for which something was queued.
  std::vector<std::shared_ptr<class Session>> unflushed_;
};

}  // namespace coordd
