// A worker's stream to the relay of its node: bytes in, bytes out. (io)
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "relay/relay_state.h"

namespace coordd {

class NodeStream;

// Thread-safe. As coordd's own Session, but that nobody reads what comes. Lives until gRPC's OnDone
// and until the last shared_ptr is gone.
class WorkerStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // How many messages a worker may leave unread, as with coordd.
  static constexpr size_t kMaxOutboxMessages = 4096;
  static constexpr size_t kMaxOutboxBytes = 64 << 20;

  // `place` is let go at the end of its life.
  WorkerStream(StreamId id, std::shared_ptr<void> place) : place_(std::move(place)), id_(id) {}

  // Begins to read; `self` keeps it until OnDone. `to` hears what comes, and the end once; nullptr:
  // nobody does, and it is to be closed.
  void Begin(std::shared_ptr<WorkerStream> self, std::shared_ptr<NodeStream> to);
  // Reads on, when NodeStream::Said had no room.
  void ReadNext();
  void Send(grpc::ByteBuffer message);
  // Ends the stream after what was sent before. The first call counts.
  void Close(const absl::Status& status);

  StreamId id() const { return id_; }

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  // Starts the write or the end that is due. gRPC may call back from within, so no lock is held.
  void WriteNext();
  // Around calls into gRPC that must not come after Finish: while one is held, nobody finishes.
  bool Hold();
  void LetGo();
  void TellEnd();

  const std::shared_ptr<void> place_;

  // Constant after Begin.
  const StreamId id_;
  std::shared_ptr<NodeStream> to_;

  // Touched by whoever has the read turn, and by whoever has the write turn (writing_).
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;

  // Guarded by mu_.
  Mutex mu_;
  std::shared_ptr<WorkerStream> self_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> outbox_ ABSL_GUARDED_BY(mu_);
  size_t outbox_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  int holds_ ABSL_GUARDED_BY(mu_) = 0;
  bool end_told_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // Finish was called: nothing may be started
  std::optional<absl::Status> close_status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
