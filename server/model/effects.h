// What goes into coordd's state and what comes out of it: plain values, so that the coordinator
// thread, the stories, the simulator and the fuzzers can make and read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/model/access_rules.h"
#include "server/model/state_store.h"

namespace coordd {

// A unary call (store or admin) that waits for its reply; unique in an epoch, given by the service
// that took it.
using CallId = StrongInt<struct CallTag, int64_t>;

// --- in ---
struct SessionMessage {
  SessionId session;  // unknown until its first message, which must be Join
  v1::WorkerMessage message;
  std::shared_ptr<const Caller> caller = {};  // of a Join; null: somebody without TLS
};
struct SessionRange {
  SessionId first;
  int32_t count = 1;
};
// What a relay has heard from several members of its node: as that many SessionMessages, in order.
// No Join where there is TLS: that comes alone, with whose it is.
struct SharedMessage {
  std::vector<SessionRange> from;  // increasing, disjoint
  std::shared_ptr<const v1::WorkerMessage> message;
};
struct SessionEnded {  // the stream is gone; sent once per session, also after our own CloseSession
  SessionId session;
  std::string detail;  // what the transport saw, one phrase
};
// What carried these streams has ended, which says nothing of the workers. As SessionEnded of each,
// where nobody could come back.
struct StreamsLost {
  std::vector<SessionId> sessions;
  std::string detail;  // as in "after the relay of node3 was lost"
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
struct StoreCompareSet {
  std::string key;
  std::optional<std::string> expected;  // nullopt: the key is to be missing
  std::string desired;
};
struct StoreAppend {
  std::string key, value;
  bool wants_value = false;  // the whole in the reply
};
struct StoreDelete {
  std::string key;
};
struct StoreLook {
  std::vector<std::string> keys;
  bool values = false;
};
struct StoreCount {
  std::string prefix;
};
struct StoreCall {
  CallId call;
  std::string job, token;
  std::variant<StoreGet, StoreSet, StoreAdd, StoreDeletePrefix, StoreCompareSet, StoreAppend,
               StoreDelete, StoreLook, StoreCount>
      request;
  std::shared_ptr<const Caller> caller = {};  // null: somebody without TLS
};
// The bytes of its keys and values.
size_t BytesOf(const decltype(StoreCall::request)& request);
absl::string_view Name(const decltype(StoreCall::request)& request);  // the protocol's: "Set"

struct TraceCall {
  CallId call;
  v1::TraceRequest request;
  std::shared_ptr<const Caller> caller = {};  // null: somebody without TLS
};
struct ExitsReported {
  CallId call;
  v1::ReportExitsRequest request;
  std::shared_ptr<const Caller> caller = {};  // null: somebody without TLS
};
struct DismissCall {
  CallId call;
  v1::DismissRequest request;
  std::shared_ptr<const Caller> caller = {};  // null: somebody without TLS
};
struct CallCancelled {  // its deadline passed or its caller went away: no reply is wanted
  CallId call;
};
struct StopRequested {
  std::string reason;  // one sentence, e.g. "coordd is stopping (SIGTERM)"
  // coordd is started again on its state within this time, and its jobs go on. 0: its end is their
  // end.
  absl::Duration resume_within = absl::ZeroDuration();
};
struct Persisted {  // the answer to a Persist that asked for one
  std::string job;
  Generation generation;
  absl::Status status = {};  // see StateStore::Commit
  CallId call = {};          // as Persist's
};
using Inbound =
    std::variant<SessionMessage, SharedMessage, SessionEnded, StreamsLost, StoreCall, TraceCall,
                 ExitsReported, DismissCall, CallCancelled, StopRequested, Persisted>;

// --- out, to be carried out in this order ---
struct Deliver {
  std::vector<SessionId> to;
  // Shared, so that it is serialised once for all receivers. `sequence` is 0 here: the session
  // numbers what it sends.
  std::shared_ptr<const v1::CoordinatorMessage> message;
};
struct CloseSession {  // after what was delivered before
  SessionId session;
  absl::Status status = {};
};
struct StoreReply {
  CallId call;
  absl::Status status = {};
  std::string value = {};  // Get; Append, if it is wanted
  // In its place, of a large one that many have waited for; null: there is none.
  std::shared_ptr<const std::string> shared = nullptr;
  // Add: the sum; DeletePrefix, Delete, Count: how many; Append: bytes.
  int64_t number = 0;
  std::vector<std::optional<std::string>> found = {};  // Look; CompareSet: of its key
  // Of a write that was carried out; of a Look: of the last write before it.
  std::optional<StoreVersion> version = {};
};
struct TraceAnswer {
  CallId call;
  absl::Status status = {};
  v1::TraceReply reply = {};
};
struct ExitsAnswer {
  CallId call;
  absl::Status status = {};
  int32_t known = 0;
};
struct DismissAnswer {
  CallId call;
  absl::Status status = {};
  v1::DismissReply reply = {};
};
using Outgoing =
    std::variant<Deliver, CloseSession, StoreReply, TraceAnswer, ExitsAnswer, DismissAnswer>;

// Changes to be stored, in the order in which they were made. What depends on them waits for the
// answer; nothing else does.
struct Persist {
  std::string job;
  Generation generation;                // to be announced once it is stored; 0: nobody waits for it
  std::vector<StateWrite> writes = {};  // all or none
  CallId call = {};                     // that is answered once it is stored; 0: none
};

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
    kProcessSetChanged,
    kProcessSetRefused,
    kRankJoined,  // it has no more data
    kScheduleBegan,
    kScheduleBroken,
    kTraced,
    kProtocolError,
    kStaleMessage,     // of an older generation: dropped
    kJobResumed,       // all members have come back to their generation
    kJobRestored,      // known from before coordd was started again
    kNotStored,        // a generation could not be stored, so it was not announced
    kAsleep,           // coordd itself was not running for a while: leases and stalls got grace
    kProcessEnded,     // how a process ended, told after its departure
    kDrainBegan,       // a worker was asked to leave
    kDrainLifted,      // and may stay after all
    kRankStuck,        // where the program of a rank is that others wait for
    kStateLost,        // a generation has none of those who had the state of the training
    kFailureReported,  // by a member, of a collective: counted, no more; what follows is told
  };
  struct Departed {
    int32_t rank = -1;         // -1: of no generation
    std::string host, detail;  // as in v1::Departure
  };
  Kind kind = Kind::kJobCreated;
  std::string job = {};
  int64_t generation = 0;
  v1::DepartureCause cause = v1::DEPARTURE_CAUSE_UNSPECIFIED;  // kWorkerDeparted
  absl::StatusCode code = absl::StatusCode::kOk;               // kJoinRefused, kTensorFailed
  std::string text = {};                                       // one sentence for the log
  std::optional<Departed> departed = {};                       // kWorkerDeparted
  // kJobCreated, kJoinRefused, and of what has reached a bound (RESOURCE_EXHAUSTED); null: not
  // known.
  std::shared_ptr<const Caller> caller = {};
  // kTensorsPlanned: one event per plan. kTensorFailed, kStallBegan, kStallEnded: one event per
  // cause, `tensors` says how many it concerns.
  int64_t batches = 0, tensors = 0, bytes = 0;
  // kTensorsPlanned: tensors that ranks have reported, and slots that had to make room, since the
  // last plan.
  int64_t reported_by_spec = 0, reported_by_slot = 0, slots_forgotten = 0;
  std::vector<absl::Duration> negotiation = {};  // per tensor: first rank's report to plan
};

struct Effects {
  std::vector<Outgoing> outgoing;
  std::vector<Persist> persist;
  std::vector<Event> events;
};

}  // namespace coordd
