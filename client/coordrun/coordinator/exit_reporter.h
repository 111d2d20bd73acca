// Tells coordd how workers have ended. (io)
#pragma once

#include <grpcpp/channel.h>

#include <deque>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/coordctl/target.h"
#include "common/base/mutex.h"
#include "coordd/v1/admin.grpc.pb.h"

namespace coordd {

// Thread-safe. gRPC's threads call back; none of ours.
class ExitReporter {
 public:
  // Begins to connect, so that the first report has no handshake before it. UNAVAILABLE: a
  // certificate cannot be read.
  static absl::StatusOr<std::unique_ptr<ExitReporter>> Start(const Target& target, std::string job,
                                                             std::string token);
  // What has not been told by now never will be.
  ~ExitReporter();

  // Never blocks. Errors are nobody's: the run goes on, and coordd finds out less.
  void Report(v1::LaunchedExit exit);
  // Until all is told, `most` at most; not at all while coordd cannot be reached.
  void Flush(absl::Duration most);

 private:
  struct Call;

  ExitReporter(std::shared_ptr<grpc::Channel> channel, std::string job, std::string token);
  // One request is under way at a time: what comes meanwhile goes with the next. The next one, to
  // be sent without the lock; null: there is none, or one is under way.
  Call* PrepareNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(Call* call);
  void OnDone(const grpc::Status& status);
  bool CanBeReached() const;

  // Constant after construction.
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
  const std::string job_, token_;

  // Guarded by mu_.
  Mutex mu_;
  CondVar idle_;
  std::deque<v1::LaunchedExit> waiting_ ABSL_GUARDED_BY(mu_);  // one for each start of a worker
  std::unique_ptr<Call> call_ ABSL_GUARDED_BY(mu_);
  int attempts_ ABSL_GUARDED_BY(mu_) = 0;  // of call_'s request
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace coordd
