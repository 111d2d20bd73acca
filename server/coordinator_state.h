// coordd's whole state and every decision, in one class without thread, lock, clock or socket. The
// coordinator thread, the stories, the simulator and the fuzzers all drive exactly this.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/types.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/server_options.h"

namespace coordd {

// A unary call (store or admin) that waits for its reply; unique in an epoch, given by the service
// that took it.
using CallId = StrongInt<struct CallTag, int64_t>;

// --- in ---
struct SessionMessage {
  SessionId session;  // unknown until its first message, which must be Join
  v1::WorkerMessage message;
};
struct SessionEnded {  // the stream is gone; sent once per session, also after our own CloseSession
  SessionId session;
  std::string detail;  // what the transport saw, one phrase
};
struct StoreSet {
  std::string key, value;
};
struct StoreGet {
  std::string key;
};
struct StoreAdd {
  std::string key;
  int64_t delta = 0;
};
struct StoreDeletePrefix {
  std::string prefix;
};
struct StoreCall {
  CallId call;
  std::string job, token;
  std::variant<StoreSet, StoreGet, StoreAdd, StoreDeletePrefix> request;
};
struct CallCancelled {  // its deadline passed or its caller went away: no reply is wanted
  CallId call;
};
struct StopRequested {
  std::string reason;
};
using Inbound = std::variant<SessionMessage, SessionEnded, StoreCall, CallCancelled, StopRequested>;

// --- out, to be carried out in this order ---
struct Deliver {
  std::vector<SessionId> to;
  // Shared, so that it is serialised once for all receivers. `sequence` is 0 here: the session
  // numbers what it sends.
  std::shared_ptr<const v1::CoordinatorMessage> message;
};
struct CloseSession {  // after what was delivered before
  SessionId session;
  absl::Status status;
};
struct StoreReply {
  CallId call;
  absl::Status status;
  std::string value;   // Get
  int64_t number = 0;  // Add: the sum; DeletePrefix: how many
};
using Outgoing = std::variant<Deliver, CloseSession, StoreReply>;

// --- what happened, for the log, the metrics and the event list; never needed to go on ---
struct Event {
  enum class Kind {
    kJobCreated,
    kJobEnded,
    kWorkerJoined,
    kJoinRefused,
    kWorkerDeparted,
    kGenerationFormed,
    kGenerationEnded,
    kTensorsPlanned,
    kTensorFailed,
    kStallBegan,
    kStallEnded,
    kProtocolError,
  };
  Kind kind;
  std::string job;
  int64_t generation = 0;
  v1::DepartureCause cause = v1::DEPARTURE_CAUSE_UNSPECIFIED;  // kWorkerDeparted
  absl::StatusCode code = absl::StatusCode::kOk;               // kJoinRefused, kTensorFailed
  std::string text;                                            // one sentence for the log
  // kTensorsPlanned: one event per plan.
  int64_t batches = 0, tensors = 0, bytes = 0;
  std::vector<absl::Duration> negotiation;  // per tensor: first rank's report to plan
};

struct Effects {
  std::vector<Outgoing> outgoing;
  std::vector<Event> events;
};

class JobState;

// PURE; `now` must not decrease between calls. Not thread-safe: one owner.
class CoordinatorState {
 public:
  CoordinatorState(const ServerOptions& options, Epoch epoch);
  ~CoordinatorState();
  CoordinatorState(const CoordinatorState&) = delete;
  CoordinatorState& operator=(const CoordinatorState&) = delete;

  // Any input, in any order, leads to a valid state: what breaks the protocol closes its session
  // with INVALID_ARGUMENT.
  void Step(const Inbound& in, absl::Time now, Effects& effects);

  // What is due by `now`: leases, settling windows, stalls.
  void Tick(absl::Time now, Effects& effects);
  absl::Time NextDeadline() const;  // InfiniteFuture: nothing is due until something comes in

  // For operators; `job` empty: all. Fills epoch and jobs.
  void Describe(const std::string& job, absl::Time now, v1::ServerState* state) const;

 private:
  void OnMessage(const SessionMessage& in, absl::Time now, Effects& effects);
  void OnJoin(SessionId session, const v1::Join& join, absl::Time now, Effects& effects);
  void OnStoreCall(const StoreCall& in, Effects& effects);
  void Refuse(SessionId session, const std::string& job, absl::Status why, Effects& effects);

  const ServerOptions options_;
  const Epoch epoch_;
  std::map<std::string, std::unique_ptr<JobState>> jobs_;
  std::map<SessionId, std::string> job_of_session_;
  std::map<CallId, std::string> job_of_call_;
  bool stopping_ = false;
};

}  // namespace coordd
