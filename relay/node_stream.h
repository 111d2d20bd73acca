// The node session of a relay: what its workers say goes to coordd as one stream. (io)
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "relay/relay_state.h"

namespace coordd {

class WorkerStream;

// Thread-safe. One node session: begins with the first worker, and when it has ended so have the
// streams of its workers, who look for coordd anew. Lives until gRPC's OnDone and until the last
// shared_ptr is gone, which may be on a thread of gRPC's.
class NodeStream final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `wake`: BatchDue has changed. No lock of this is held when it is called.
  // `alive`: is let go when all else of the stream is gone.
  NodeStream(const RelayOptions& options, v1::NodeHello hello, Clock& clock,
             std::function<void()> wake, std::shared_ptr<void> alive);

  void Begin(std::shared_ptr<NodeStream> self, std::shared_ptr<grpc::Channel> channel);
  // Adds a worker. False: the stream to coordd has ended, and the caller ends the worker's stream
  // with the status.
  bool Add(const std::shared_ptr<WorkerStream>& worker, absl::Status* why);

  // Takes what a worker has sent; returns whether the worker may go on. If not, its ReadNext is
  // called later.
  bool Said(StreamId worker, std::string message);
  // `detail`: why, beside the loss; empty: the worker's own doing.
  void Ended(StreamId worker, absl::string_view detail);

  absl::Time BatchDue() const;
  // Sends the batch that is due.
  void Flush();
  void Cancel();
  bool ended() const;
  // As RelayState's.
  std::vector<std::string> MetricsAddresses() const;

 private:
  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  void FlushLocked(absl::Time now, std::vector<std::shared_ptr<WorkerStream>>& resumed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Deliver(const v1::NodeReplies& replies);

  // Constant after Begin. The first member is destroyed last.
  const std::shared_ptr<void> alive_;
  Clock& clock_;
  const std::function<void()> wake_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::GenericStub> stub_;

  // Thread-safe by itself (TryCancel), or gRPC's.
  grpc::ClientContext context_;

  // Touched by one reaction at a time.
  grpc::ByteBuffer incoming_;

  // Guarded by mu_. outgoing_ is gRPC's to read while writing_.
  mutable Mutex mu_;
  std::shared_ptr<NodeStream> self_ ABSL_GUARDED_BY(mu_);
  RelayState state_ ABSL_GUARDED_BY(mu_);
  std::map<StreamId, std::shared_ptr<WorkerStream>> workers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<WorkerStream>> withheld_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer outgoing_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> ended_ ABSL_GUARDED_BY(mu_);  // what its workers are told
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace coordd
