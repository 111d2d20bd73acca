// One worker's stream: bytes in, bytes out. (io)
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "server/coordinator_state.h"
#include "server/inbox.h"
#include "server/server_metrics.h"

namespace coordd {

// Thread-safe. gRPC calls it from its threads (reads and writes on different ones), the coordinator
// thread sends and closes. It works on bytes instead of messages, so that one serialisation serves
// all receivers and a message that cannot be parsed is answered instead of ending the stream
// silently. Lives until gRPC's OnDone and until the last shared_ptr is gone.
class Session final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // What a worker may leave unread. A plan is some kilobytes, so this is a worker that has stopped
  // reading.
  static constexpr size_t kMaxOutboxMessages = 4096;
  static constexpr size_t kMaxOutboxBytes = 64 << 20;

  // `on_done` is called with the id when gRPC has let go of the stream.
  Session(SessionId id, grpc::CallbackServerContext* context, Inbox& inbox, ServerMetrics& metrics,
          std::function<void(SessionId)> on_done);

  // Begins to read; `self` keeps it until OnDone.
  void Begin(std::shared_ptr<Session> self);

  // Queues a serialised CoordinatorMessage without `sequence` under the session's next one. Slices
  // share their bytes, so one serialisation serves all receivers. False: the outbox is full, and
  // the session is closing because of that. After Close it does nothing.
  bool Send(const grpc::Slice& body);

  // Ends the stream with `status` after what was sent before. The first call counts.
  void Close(const absl::Status& status);

  // For a worker that reads nothing: cancels the stream without waiting for it.
  void Break();

  SessionId id() const { return id_; }
  // Whether a message has come, and whether Close was called.
  bool joined() const;
  bool closing() const;

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  // Parses what was read.
  void Take();
  // Offers what was parsed, or waits for room; then reads on.
  void OfferHeld();
  void ReadNext();
  void Ended(const std::string& detail);
  // Starts the write or the end that is due. gRPC may call back from within, so no lock is held.
  void WriteNext();
  void DiscardOutboxLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Around calls into gRPC that must not come after Finish: while one is held, nobody finishes.
  bool Hold();
  void LetGo();

  // Constant after construction.
  const SessionId id_;
  const std::function<void(SessionId)> on_done_;
  grpc::CallbackServerContext* const context_;  // valid until OnDone

  // Thread-safe by itself.
  Inbox& inbox_;
  ServerMetrics& metrics_;

  // Touched by whoever has the read turn: OnReadDone, then the resumption of a withheld read.
  grpc::ByteBuffer incoming_;
  std::optional<Inbox::Item> held_;  // parsed, not yet taken by the inbox

  // Touched by whoever has the write turn (writing_).
  grpc::ByteBuffer outgoing_;

  // Guarded by mu_.
  mutable Mutex mu_;
  std::shared_ptr<Session> self_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> outbox_ ABSL_GUARDED_BY(mu_);
  size_t outbox_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  int holds_ ABSL_GUARDED_BY(mu_) = 0;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  bool end_reported_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish was called: nothing may be started
  std::optional<absl::Status> close_status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
