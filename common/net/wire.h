// A TCP connection of a client that waits until a deadline at most. (io)
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/owned_fd.h"
#include "common/net/address.h"

namespace coordd {

// One thread owns it; its calls block.
class Wire {
 public:
  // `clock` outlives it. UNAVAILABLE: it cannot be reached by then, in a sentence.
  static absl::StatusOr<Wire> Connect(const HostPort& address, absl::Time deadline, Clock& clock);

  // False: the other side has gone, or does not read.
  bool Send(absl::string_view bytes);
  // Nothing: the other side has closed, or is silent until the deadline.
  std::string Receive();
  bool closed() const { return closed_; }
  int fd() const { return fd_.get(); }
  bool Await(short events);

 private:
  Wire(absl::Time deadline, Clock& clock) : deadline_(deadline), clock_(&clock) {}
  int TakeError();

  OwnedFd fd_;
  absl::Time deadline_;
  Clock* clock_;
  bool closed_ = false;
};

}  // namespace coordd
