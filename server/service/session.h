// A stream of one worker, or of the workers of a node: bytes in, bytes out. (io)
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/protocol/member_runs.h"
#include "server/door/read_bytes.h"
#include "server/job/coordinator_state.h"
#include "server/members/node_members.h"
#include "server/metrics/server_metrics.h"
#include "server/model/access_rules.h"
#include "server/service/audit_log.h"
#include "server/service/inbox.h"
#include "server/service/message_parts.h"
#include "server/service/metrics_address_rule.h"
#include "server/service/repeated_messages.h"
#include "server/service/session_outbox.h"
#include "server/service/unread_answers.h"

namespace coordd {

// Thread-safe. gRPC calls it from its threads (reads and writes on different ones), whoever has
// the coordinator's turn sends and closes. It works on bytes instead of messages, so that one
// serialisation serves all receivers and a message that cannot be parsed is answered instead of
// ending the stream silently. Lives until gRPC's OnDone and until the last shared_ptr is gone. Of a
// node session the state sees the members only, each as a session.
class Session final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // A message up to here costs less as a copy behind its frame than as a slice of its own.
  static constexpr size_t kCopiedBytes = 4096;
  // A batch of a node whose memory is kept for the next one.
  static constexpr size_t kKeptBatchBytes = 4096;

  enum class Kind { kWorker, kNode };
  struct Stream {
    grpc::CallbackServerContext* context;  // valid until OnDone
    ReadBytes::Counter read;               // counts for its connection
    // Whose it is; null: that is not clear, and the session is closed before anything is read.
    std::shared_ptr<const Caller> caller;
    AuditLog& audit;
    MetricsAddressRule& metrics_addresses;
    // Null where `caller` is.
    std::shared_ptr<UnreadAnswers::OfOne> unread;
    uint64_t account = 0;  // stands for AccountOf(*caller)
    // Stands for the job that its first message names. Touched by whoever has the read turn.
    uint64_t job = 0;
  };

  struct Calls {
    std::function<void(SessionId)> done;  // gRPC has let go of the stream
    // It is closing because of what it has not read.
    std::function<void(const Session& session)> full;
  };

  // Of a node session `id` is its number among all sessions.
  Session(Kind kind, SessionId id, Stream stream, Inbox& inbox, ServerMetrics& metrics,
          Calls calls);

  ~Session() override;

  // Begins to read; `self` keeps it until OnDone.
  void Begin(std::shared_ptr<Session> self);

  // Queues a serialised CoordinatorMessage without `sequence` under the session's next one. Slices
  // share their bytes, so one serialisation serves all receivers (NewBody). Where there is no room
  // the session is closing because of that (Calls::full). After Close it does nothing.
  void Send(const grpc::Slice& body);
  // Memory for a message to this session, and to others.
  grpc::Slice NewBody(size_t bytes) const;
  // A message of a node session to some of its members. It is written at Flush, with all that is
  // queued. Several nodes may share what is sent.
  struct Framed {
    grpc::Slice head;  // all of it, unless the message is large
    grpc::Slice rest = {};
  };
  void SendTo(const Framed& message);
  // The message as a NodeReplies with this one reply, to these members.
  static Framed FrameFor(const MemberRuns& members, const grpc::Slice& message);
  // Ends these members' streams, after what was sent before.
  void CloseMembers(const MemberRuns& members, const absl::Status& status);
  void Flush() { WriteNext(); }

  // Ends the stream with `status` after what was sent before. The first call counts.
  void Close(const absl::Status& status);

  // For a worker that reads nothing: cancels the stream without waiting for it.
  void Break();

  SessionId id() const { return id_; }
  bool is_node() const { return kind_ == Kind::kNode; }
  // ToString of whose it is; empty: that is not clear.
  std::string owner() const {
    return stream_.caller == nullptr ? std::string() : ToString(stream_.caller->identity);
  }
  // For people; empty as owner().
  std::string caller() const {
    return stream_.caller == nullptr ? std::string() : CallerText(*stream_.caller);
  }
  // What Close was called with, or why it is closing; OK while it is not.
  absl::Status CloseStatus() const;
  // Whether a message has come, and whether Close was called.
  bool joined() const;
  bool closing() const;

 private:
  struct HeldMessage {
    std::deque<MessagePart> parts;
    size_t bytes = 0;        // on the wire
    size_t space = 0;        // of memory
    bool has_begun = false;  // a part was taken
  };
  // What gRPC does for it. kFinished: Finish was called, and nothing may be started.
  enum class Output { kIdle, kWriting, kFinished };
  // To the state: it hears of a session's end once, and only of one that it knows.
  enum class Known { kNobody, kJoined, kEnded };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  // False: there is no room, and the session is closing because of that.
  bool QueueLocked(grpc::ByteBuffer message, size_t counted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseAsFullLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads what has come, if it is small or there is room for it; otherwise when its turn comes.
  void Take();
  // Parses it, unless it is what was read before.
  void Read(bool has_waited);
  absl::StatusOr<ParsedMessage> Parse(size_t bytes);
  absl::StatusOr<ParsedMessage> TakeNodeMessages(const v1::NodeMessages& batch, size_t bytes);
  absl::Status MayGreet(const v1::NodeMessages& batch);
  // What the state is told of the end; absent: it has been told, or knows of nobody.
  std::optional<Inbound> EndLocked(const std::string& detail) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Offers what was parsed, part by part, or waits for room; then reads on.
  void OfferHeld(bool has_waited);
  // False: there is no room for the part, and its turn will come.
  bool OfferPart(bool has_waited);
  void WaitForRoom(const MessageSize& size);
  void ReadNext();
  void StartNextRead();
  // Whether it may offer or read more now; it is then held. Otherwise OnWriteDone goes on, or it
  // ends.
  bool HoldToGoOn();
  void GoOnAndLetGo();
  void Ended(const std::string& detail);
  // Starts the write or the end that is due. gRPC may call back from within, so no lock is held.
  void WriteNext();
  void CountOutboxLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DiscardOutboxLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Around calls into gRPC that must not come after Finish: while one is held, nobody finishes.
  bool Hold();
  void LetGo();

  // Constant after construction.
  const Kind kind_;
  const SessionId id_;
  const Calls calls_;
  Stream stream_;

  // Thread-safe by itself.
  Inbox& inbox_;
  ServerMetrics& metrics_;

  // Touched by whoever has the read turn: OnReadDone, then the resumption of a withheld read.
  grpc::ByteBuffer incoming_;
  v1::NodeMessages batch_;  // its memory serves the next one
  RepeatedMessages repeated_;
  HeldMessage held_;  // parsed, not yet taken by the inbox

  // Touched by whoever has the write turn (Output::kWriting).
  grpc::ByteBuffer outgoing_;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::shared_ptr<Session> self_ ABSL_GUARDED_BY(mu_);
  SessionOutbox outbox_ ABSL_GUARDED_BY(mu_);
  int64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  Output output_ ABSL_GUARDED_BY(mu_) = Output::kIdle;
  int holds_ ABSL_GUARDED_BY(mu_) = 0;
  Known known_ ABSL_GUARDED_BY(mu_) = Known::kNobody;
  std::optional<absl::Status> close_status_ ABSL_GUARDED_BY(mu_);
  NodeMembers members_ ABSL_GUARDED_BY(mu_);  // of a node session
};

}  // namespace coordd
