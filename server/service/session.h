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
#include "server/service/inbox.h"

namespace coordd {

// Thread-safe. gRPC calls it from its threads (reads and writes on different ones), whoever has
// the coordinator's turn sends and closes. It works on bytes instead of messages, so that one
// serialisation serves all receivers and a message that cannot be parsed is answered instead of
// ending the stream silently. Lives until gRPC's OnDone and until the last shared_ptr is gone. Of a
// node session the state sees the members only, each as a session.
class Session final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // What a worker may leave unread. A plan is some kilobytes, so this is a worker that has stopped
  // reading.
  static constexpr size_t kMaxOutboxMessages = 4096;
  static constexpr size_t kMaxOutboxBytes = 64 << 20;
  static constexpr size_t kMaxNodeOutboxMessages = 1 << 16;  // each of its members has its own
  // Of what goes to a relay at once, unless one message is larger.
  static constexpr size_t kMaxReplyBytes = 1 << 20;
  // A message up to here costs less as a copy behind its frame than as a slice of its own.
  static constexpr size_t kCopiedBytes = 4096;
  // A batch of a node whose memory is kept for the next one.
  static constexpr size_t kKeptBatchBytes = 4096;

  // A program reports the same in each of its steps, in a few messages: what these say is kept.
  static constexpr size_t kRemembered = 4;
  static constexpr size_t kRememberedBytes = 1024;

  enum class Kind { kWorker, kNode };

  // `on_done` is called with the id when gRPC has let go of the stream. Of a node session `id` is
  // its number among all sessions.
  Session(Kind kind, SessionId id, grpc::CallbackServerContext* context, ReadBytes::Counter read,
          Inbox& inbox, ServerMetrics& metrics, std::function<void(SessionId)> on_done);

  // Begins to read; `self` keeps it until OnDone.
  void Begin(std::shared_ptr<Session> self);

  // Queues a serialised CoordinatorMessage without `sequence` under the session's next one. Slices
  // share their bytes, so one serialisation serves all receivers. False: the outbox is full, and
  // the session is closing because of that. After Close it does nothing.
  bool Send(const grpc::Slice& body);
  // Of a node session: the same to some of its members. Written at Flush, with all that is queued.
  // Several nodes may share what is sent.
  struct Framed {
    grpc::Slice head;  // all of it, unless the message is large
    grpc::Slice rest = {};
  };
  bool SendTo(const Framed& message);
  // As a NodeReplies with this one reply, to these members.
  static Framed FrameFor(const MemberRuns& members, const grpc::Slice& message);
  // Ends these members' streams, after what was sent before.
  bool CloseMembers(const MemberRuns& members, const absl::Status& status);
  void Flush() { WriteNext(); }

  // Ends the stream with `status` after what was sent before. The first call counts.
  void Close(const absl::Status& status);

  // For a worker that reads nothing: cancels the stream without waiting for it.
  void Break();

  SessionId id() const { return id_; }
  bool is_node() const { return kind_ == Kind::kNode; }
  // Whether a message has come, and whether Close was called.
  bool joined() const;
  bool closing() const;

 private:
  struct Remembered {
    std::string bytes;
    int64_t changes = 0;  // its meaning is the same while members_.changes() is
    Inbox::Together in;
    WakeRule::Report report;
  };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  // False: there is no room, and the session is closing because of that.
  bool QueueLocked(grpc::ByteBuffer message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Parses what was read, unless it is what was read before.
  void Take();
  const Remembered* Recall(const grpc::Slice& bytes) const;
  void Remember(const grpc::Slice& bytes, const Inbox::Together& in);
  absl::StatusOr<Inbox::Together> Parse();
  absl::StatusOr<Inbox::Together> TakeBatch(const v1::NodeMessages& batch);
  void TakeFromOutboxLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What the state is told of the end; absent: it has been told, or knows of nobody.
  std::optional<Inbound> EndLocked(const std::string& detail) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Offers what was parsed, or waits for room; then reads on.
  void OfferHeld();
  void ReadNext();
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
  const std::function<void(SessionId)> on_done_;
  grpc::CallbackServerContext* const context_;  // valid until OnDone
  ReadBytes::Counter read_;                     // by its connection

  // Thread-safe by itself.
  Inbox& inbox_;
  ServerMetrics& metrics_;

  // Touched by whoever has the read turn: OnReadDone, then the resumption of a withheld read.
  grpc::ByteBuffer incoming_;
  v1::NodeMessages batch_;
  int64_t changes_ = 0;      // members_.changes()
  bool may_repeat_ = false;  // what was parsed last
  std::vector<Remembered> remembered_;
  size_t oldest_remembered_ = 0;
  std::optional<Inbox::Item> held_;  // parsed, not yet taken by the inbox
  WakeRule::Report report_;          // what it reports

  // Touched by whoever has the write turn (writing_).
  grpc::ByteBuffer outgoing_;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::shared_ptr<Session> self_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> outbox_ ABSL_GUARDED_BY(mu_);
  size_t outbox_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t counted_ ABSL_GUARDED_BY(mu_) = 0;  // messages in it, of which the metric knows
  int64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  int holds_ ABSL_GUARDED_BY(mu_) = 0;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  bool end_reported_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish was called: nothing may be started
  std::optional<absl::Status> close_status_ ABSL_GUARDED_BY(mu_);
  NodeMembers members_ ABSL_GUARDED_BY(mu_);  // of a node session
};

}  // namespace coordd
