// When this rank says that it lives, and how long it may believe that coordd knows. PURE
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "common/protocol/heartbeat_pace.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/clock_offset.h"

namespace coordd {

// Not thread-safe: a part of CoordinatorSession.
//
// Invariant: within a session the lease's end never comes earlier.
class Heartbeats {
 public:
  struct Pace {
    absl::Duration interval = absl::Seconds(2);
    absl::Duration lease = absl::Seconds(10);
    int32_t size = 1;
    Rank rank;
  };

  Heartbeats(absl::Duration lease, absl::Time now)
      : next_heartbeat_(now), lease_until_(now + lease) {}

  // There is a session again, perhaps with another machine: its clock is not known.
  void BeginAnew(absl::Duration lease, absl::Time now) {
    lease_until_ = now + lease;
    next_heartbeat_ = now;
    clock_ = ClockOffset();
  }
  void EnterGeneration(absl::Duration lease, absl::Time now) {
    next_heartbeat_ = now;
    lease_until_ = std::max(lease_until_, now + lease);
  }

  void OnAck(const v1::LeaseAck& ack, absl::Time now) {
    // Only what is counted from our own clock's reading is safe to assume.
    const absl::Time seen = absl::FromUnixNanos(ack.echoed_sent_ns());
    lease_until_ = std::max(lease_until_, std::min(seen, now) + FromProto(ack.lease()));
    arrival_lag_ = FromProto(ack.arrival_lag());
    stack_wanted_ = stack_wanted_ || ack.wants_stack();
    if (ack.coordd_ns() != 0) clock_.Answered(seen, now, absl::FromUnixNanos(ack.coordd_ns()));
  }
  // Half a lease without a tick, though heartbeats alone make for more: whatever coordd has said
  // meanwhile is still to be read, its refusal too.
  void NoticeSleep(bool attached, absl::Duration lease, absl::Time now) {
    const bool slept = attached && now - last_tick_ > lease / 2;
    last_tick_ = now;
    if (slept) lease_until_ = std::max(lease_until_, now + lease / 2);
  }
  void Sent(const Pace& pace, absl::Time now) {
    lag_ = now - next_heartbeat_;
    // Until coordd has answered for the first time its clock is not known: then a whole interval.
    next_heartbeat_ = now + (clock_.known() ? UntilNextHeartbeat(pace.interval, pace.size,
                                                                 pace.rank, now + clock_.offset())
                                            : pace.interval);
  }

  absl::Time next_heartbeat() const { return next_heartbeat_; }
  absl::Time lease_until() const { return lease_until_; }
  const ClockOffset& clock() const { return clock_; }
  // How late the last one was sent.
  absl::Duration lag() const { return lag_; }
  // How late this rank comes to collectives, as coordd has told last.
  absl::Duration arrival_lag() const { return arrival_lag_; }
  // coordd asks where the program is. Once.
  bool TakeStackWanted() { return std::exchange(stack_wanted_, false); }

 private:
  absl::Time next_heartbeat_;
  absl::Time lease_until_;
  absl::Time last_tick_ = absl::InfiniteFuture();
  ClockOffset clock_;
  absl::Duration lag_;
  absl::Duration arrival_lag_;
  bool stack_wanted_ = false;
};

}  // namespace coordd
