// A worker's session with coordd: whether there is one, and how a lost one is taken up again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/backoff.h"
#include "common/base/random.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/heartbeats.h"
#include "worker/protocol/turn.h"
#include "worker/protocol/worker_events.h"

namespace coordd {

// PURE; part of WorkerState, one for its life. docs/design/recovery.md, part B.
//
// Invariant: messages go out only while the link is attached; each stream is opened once, and only
// what comes on the latest one is heard.
class CoordinatorSession {
 public:
  // What holds in a generation.
  struct Terms {
    Generation generation;
    Heartbeats::Pace pace;
    bool lasting = false;  // coordd may come back on its state: a lost session is resumed
    absl::Duration resume_timeout = absl::Seconds(300);
    int32_t coordinators = 1;  // addresses at which it may come back
  };

  CoordinatorSession(const Terms& terms, Epoch epoch, int64_t session, int64_t received_sequence,
                     uint64_t seed, absl::Time now);
  CoordinatorSession(CoordinatorSession&&) = default;

  void EnterGeneration(const Terms& terms, int64_t session, absl::Time now);

  // False: the connection is lost, and another one is looked for.
  bool attached() const { return link_ == Link::kAttached || link_ == Link::kEnded; }
  bool detached() const { return link_ == Link::kDetached; }
  bool resuming() const { return link_ == Link::kResuming; }
  bool ended() const { return link_ == Link::kEnded; }
  bool can_send() const { return link_ == Link::kAttached; }

  // Nothing while there is nobody to hear it.
  void Send(v1::WorkerMessage message, const WorkerTurn& turn) const;
  void Stamp(v1::WorkerMessage& message) const;

  // Whether what came on this stream, from a coordd of this epoch, is of the session at hand;
  // adopts the epoch of a coordd that was started again. FAILED_PRECONDITION: that one has an
  // older state.
  absl::StatusOr<bool> Hears(int64_t stream, int64_t epoch);
  // The next message's number; whether it was.
  bool TakeSequence(int64_t sequence);
  int64_t received_sequence() const { return received_sequence_; }
  bool IsLatest(int64_t stream) const { return stream == stream_; }

  // Whether a connection that has ended so may be followed by another one.
  bool MayResume(const absl::Status& ended) const;
  void Detach(const absl::Status& why, absl::Time now);
  // Once, when it has been away for kAwayIsNews.
  static constexpr absl::Duration kAwayIsNews = absl::Seconds(10);
  std::optional<CoordinatorAway> TakeAway(absl::Time now);
  bool HasTimedOut(absl::Time now) const;
  std::string TimeoutText() const;  // one phrase
  // Opens the next stream if it is time to; the resume has to follow.
  bool TakeAttempt(const WorkerTurn& turn);
  void Resumed(int64_t session) { session_ = session; }
  // There is a session again.
  void Reattach(absl::Time now);
  // Nothing is resumed any more: what is opened stays open, otherwise there is none.
  void StopTrying();
  void StopResuming();
  void End() { link_ = Link::kEnded; }
  // The next attempt or the end of all; InfiniteFuture: it is attached.
  absl::Time NextDeadline() const;

  Epoch epoch() const { return epoch_; }
  int64_t number() const { return session_; }
  Heartbeats& heartbeats() { return heartbeats_; }
  const Heartbeats& heartbeats() const { return heartbeats_; }
  const Terms& terms() const { return terms_; }

 private:
  enum class Link {
    kAttached,
    kDetached,  // no stream; the next attempt has its time
    kResuming,  // a stream is open, and coordd has not taken this rank back
    kEnded,     // for good
  };

  Terms terms_;
  Link link_ = Link::kAttached;
  Epoch epoch_;
  int64_t session_;
  int64_t stream_ = 0;  // the latest
  int64_t received_sequence_;
  std::unique_ptr<Random> random_;  // backoff_ refers to it, wherever this goes
  Backoff backoff_;
  absl::Time detached_since_;
  absl::Status detached_because_;
  bool away_told_ = false;
  absl::Time next_attempt_ = absl::InfiniteFuture();
  int64_t tried_ = 0;  // addresses, since the connection was lost
  Heartbeats heartbeats_;
};

}  // namespace coordd
