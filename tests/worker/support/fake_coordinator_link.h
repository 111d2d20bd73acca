// A stream to a coordd that the test plays.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "coordd/v1/session.pb.h"
#include "worker/coordinator/coordinator_link.h"

namespace coordd {

// What the two ends of a fake stream share; the test keeps it longer than the link lives.
// Thread-safe.
class FakeCoordinator {
 public:
  // The next message from the worker; waits for it.
  v1::WorkerMessage Receive() {
    MutexLock lock(&mu_);
    while (received_.empty()) changed_.Wait(&mu_);
    v1::WorkerMessage message = std::move(received_.front());
    received_.pop_front();
    return message;
  }
  // As Receive, leaving out heartbeats.
  v1::WorkerMessage ReceiveNext() {
    while (true) {
      v1::WorkerMessage message = Receive();
      if (!message.has_heartbeat()) return message;
    }
  }
  // Numbers and sends a message.
  void Say(v1::CoordinatorMessage message) {
    std::function<void(v1::CoordinatorMessage)> say;
    {
      MutexLock lock(&mu_);
      message.set_sequence(++sequence_);
      say = callbacks_.on_message;
    }
    say(std::move(message));
  }
  // Ends the stream; once per stream.
  void End(absl::Status status) {
    std::function<void(absl::Status)> end;
    {
      MutexLock lock(&mu_);
      if (!open_) return;
      open_ = false;
      end = callbacks_.on_closed;
    }
    end(std::move(status));
  }
  // What happens as soon as a stream is started; by default nothing.
  std::function<void()> on_start;

  int streams() const {
    MutexLock lock(&mu_);
    return streams_;
  }

 private:
  friend class FakeCoordinatorLink;

  mutable Mutex mu_;
  CondVar changed_;
  std::deque<v1::WorkerMessage> received_ ABSL_GUARDED_BY(mu_);
  CoordinatorLink::Callbacks callbacks_ ABSL_GUARDED_BY(mu_);
  bool open_ ABSL_GUARDED_BY(mu_) = false;
  int64_t sequence_ ABSL_GUARDED_BY(mu_) = 0;
  int streams_ ABSL_GUARDED_BY(mu_) = 0;
};

class FakeCoordinatorLink final : public CoordinatorLink {
 public:
  explicit FakeCoordinatorLink(FakeCoordinator& coordinator) : coordinator_(coordinator) {}
  ~FakeCoordinatorLink() override { Cancel(); }

  void Start(Callbacks callbacks) override {
    {
      MutexLock lock(&coordinator_.mu_);
      coordinator_.callbacks_ = std::move(callbacks);
      coordinator_.open_ = true;
      coordinator_.sequence_ = 0;
      ++coordinator_.streams_;
    }
    if (coordinator_.on_start) coordinator_.on_start();
  }
  absl::Status Send(v1::WorkerMessage message) override {
    MutexLock lock(&coordinator_.mu_);
    if (!coordinator_.open_) return absl::FailedPreconditionError("ended");
    coordinator_.received_.push_back(std::move(message));
    coordinator_.changed_.NotifyAll();
    return absl::OkStatus();
  }
  void Close() override {}
  void Cancel() override { coordinator_.End(absl::CancelledError("cancelled")); }

 private:
  FakeCoordinator& coordinator_;
};

}  // namespace coordd
