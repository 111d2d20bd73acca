// The worker's stream to coordd as a seam.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"

namespace coordd::v1 {
class CoordinatorMessage;
class WorkerMessage;
}  // namespace coordd::v1

namespace coordd {

// One stream: started once, ended once. Thread-safe. GrpcCoordinatorLink; FakeCoordinatorLink
// (tests).
class CoordinatorLink {
 public:
  // Called one after the other from threads of the link's own; they must not block and must not
  // destroy the link.
  struct Callbacks {
    std::function<void(v1::CoordinatorMessage)> on_message;
    // Called once, last, with the status with which coordd ended the stream, OK after a Leave.
    // UNAVAILABLE: coordd cannot be reached or the connection broke.
    std::function<void(absl::Status)> on_closed;
  };

  // Cancels the stream unless it has ended; no callback runs after the destructor has returned.
  virtual ~CoordinatorLink() = default;

  // Starts the stream. To be called once, before anything else.
  virtual void Start(Callbacks callbacks) = 0;

  // Queues a message; never blocks. RESOURCE_EXHAUSTED, from then on: the outbox is full, coordd
  // does not read. FAILED_PRECONDITION: the stream has ended or was closed.
  virtual absl::Status Send(v1::WorkerMessage message) = 0;

  // Says that nothing more will be sent, after what was queued. on_closed follows when coordd has
  // answered. Idempotent.
  virtual void Close() = 0;

  // Ends the stream now, whatever is queued. on_closed follows with CANCELLED, or with what Send
  // said of a full outbox. Idempotent.
  virtual void Cancel() = 0;
};

// Makes a new stream each time, not started. Where coordd has several addresses, each stream goes
// to the next one.
using LinkFactory = std::function<std::unique_ptr<CoordinatorLink>()>;

}  // namespace coordd
