// A worker's stream to the relay of its node: bytes in, bytes out. (io)
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "relay/relay_state.h"
#include "relay/worker_patience.h"

namespace coordd {

class NodeStream;

// Thread-safe. As coordd's own Session, but that nobody reads what comes. Of a worker that has much
// unread nothing more is read, so what it is answered stays bounded; what others cause goes on
// coming, and a worker that takes nothing of it for too long is ended. Lives until gRPC's OnDone
// and until the last shared_ptr is gone.
class WorkerStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // What a worker may leave unread: as many as coordd keeps for all of the relay, since what the
  // worker has said before may be on its way to coordd and is answered.
  static constexpr size_t kMaxOutboxMessages = size_t{1} << 16;
  static constexpr size_t kMaxOutboxBytes = 64 << 20;
  // With so much unread no more is read from the worker.
  static constexpr size_t kLongOutboxMessages = 4096;
  static constexpr size_t kLongOutboxBytes = kMaxOutboxBytes / 3;

  // `context` is the call's; `place` is let go at the end of its life; `clock` outlives it.
  WorkerStream(StreamId id, grpc::CallbackServerContext* context, std::shared_ptr<void> place,
               const WorkerPatience& patience, Clock& clock);

  // Begins to read; `self` keeps it until OnDone. `to` hears what comes, and the end once; nullptr:
  // nobody does, and it is to be closed.
  void Begin(std::shared_ptr<WorkerStream> self, std::shared_ptr<NodeStream> to);
  // Reads on, when NodeStream::Said had no room; once the worker has read, if it has much unread.
  void ReadNext();
  void Send(grpc::ByteBuffer message);
  // Ends the stream after what was sent before. The first call counts.
  void Close(const absl::Status& status);
  // To be called now and then: breaks the stream of a worker that has had its time.
  void Look(absl::Time now);

  StreamId id() const { return id_; }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  // Starts the write or the end that is due. gRPC may call back from within, so no lock is held.
  void WriteNext();
  // Behind a call into gRPC that must not come after Finish: while holds_ is above 0, nobody
  // finishes.
  void LetGo();
  // `detail`: what coordd says of it beside the loss.
  void TellEnd(absl::string_view detail);
  void ReadName(const std::string& message);
  bool IsLongLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return outbox_.size() >= kLongOutboxMessages || outbox_bytes_ >= kLongOutboxBytes;
  }
  // What is queued is of no use to the worker without the rest. Returns what it has left unread.
  std::string DiscardOutboxLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closes and tells of it, for `why`.
  void GiveUpOn(const std::string& why);

  const std::shared_ptr<void> place_;

  // Constant after Begin.
  const StreamId id_;
  const WorkerPatience patience_;
  Clock& clock_;
  std::shared_ptr<NodeStream> to_;

  // Touched by whoever has the read turn, and by whoever has the write turn (writing_).
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;

  // Guarded by mu_.
  Mutex mu_;
  std::shared_ptr<WorkerStream> self_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> outbox_ ABSL_GUARDED_BY(mu_);
  size_t outbox_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  grpc_call* call_ ABSL_GUARDED_BY(mu_);   // until OnDone
  std::string name_ ABSL_GUARDED_BY(mu_);  // as its Join says; empty: none has come
  struct Writing {
    absl::Time since;
    size_t bytes;
  };
  std::optional<Writing> writing_ ABSL_GUARDED_BY(mu_);  // absent: nothing is written
  bool reads_later_ ABSL_GUARDED_BY(mu_) = false;        // when it has less unread
  int holds_ ABSL_GUARDED_BY(mu_) = 0;
  bool end_told_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish was called: nothing may be started
  struct Closing {
    absl::Status status;
    absl::Time since;
  };
  std::optional<Closing> closing_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
