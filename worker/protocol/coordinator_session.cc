#include "worker/protocol/coordinator_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/execute/worker_errors.h"

namespace coordd {
namespace {

// Whoever waits for a coordd that takes over should not wait much longer for the next try; a
// thousand ranks should not all come at once.
BackoffOptions PausesOf(int32_t ranks) {
  BackoffOptions pauses;
  pauses.max = std::clamp(absl::Milliseconds(2) * ranks, absl::Milliseconds(500), pauses.max);
  return pauses;
}

}  // namespace

CoordinatorSession::CoordinatorSession(const Terms& terms, Epoch epoch, int64_t session,
                                       int64_t received_sequence, uint64_t seed, absl::Time now)
    : terms_(terms),
      epoch_(epoch),
      session_(session),
      received_sequence_(received_sequence),
      random_(std::make_unique<Random>(seed)),
      backoff_(PausesOf(terms.pace.size), *random_),
      heartbeats_(terms.pace.lease, now) {}

void CoordinatorSession::EnterGeneration(const Terms& terms, int64_t session, absl::Time now) {
  terms_ = terms;
  session_ = session;
  // It was formed before coordd was started again, and this rank had not heard of it.
  if (resuming()) Reattach(now);
  heartbeats_.EnterGeneration(terms_.pace.lease, now);
}

void CoordinatorSession::Send(v1::WorkerMessage message, const WorkerTurn& turn) const {
  if (!can_send()) return;
  Stamp(message);
  turn.out.push_back(SendMessage{std::move(message)});
}

void CoordinatorSession::Stamp(v1::WorkerMessage& message) const {
  message.set_epoch(ToInt(epoch_));
  message.set_generation(ToInt(terms_.generation));
}

absl::StatusOr<bool> CoordinatorSession::Hears(int64_t stream, int64_t epoch) {
  if (stream != stream_ || detached()) return false;
  if (resuming() && epoch < ToInt(epoch_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("coordd is in epoch ", epoch, ", before epoch ", ToInt(epoch_),
                     " in which this rank was: it has an older state"));
  }
  if (resuming()) epoch_ = Epoch{epoch};
  return epoch >= ToInt(epoch_);  // of an earlier coordd: refused by number
}

bool CoordinatorSession::TakeSequence(int64_t sequence) {
  if (sequence != received_sequence_ + 1) return false;
  received_sequence_ = sequence;
  return true;
}

bool CoordinatorSession::MayResume(const absl::Status& ended) const {
  if (!terms_.lasting || this->ended()) return false;
  // gRPC says UNKNOWN when a stream ends without trailers.
  return absl::IsUnavailable(ended) || absl::IsUnknown(ended);
}

void CoordinatorSession::Detach(const absl::Status& why, absl::Time now) {
  if (attached()) {
    detached_since_ = now;
    backoff_.Reset();
    tried_ = 0;
    away_told_ = false;
  }
  link_ = Link::kDetached;
  detached_because_ = why;
  // A pause only when all addresses have been tried.
  next_attempt_ = tried_ % terms_.coordinators == 0 ? now + backoff_.Next() : now;
}

std::optional<CoordinatorAway> CoordinatorSession::TakeAway(absl::Time now) {
  if (attached() || away_told_ || now < detached_since_ + kAwayIsNews) return std::nullopt;
  away_told_ = true;
  return CoordinatorAway{now - detached_since_, detached_because_, terms_.resume_timeout};
}

bool CoordinatorSession::HasTimedOut(absl::Time now) const {
  return !attached() && now >= detached_since_ + terms_.resume_timeout;
}

std::string CoordinatorSession::TimeoutText() const {
  return absl::StrCat("coordd did not come back within ", SecondsText(terms_.resume_timeout), ": ",
                      detached_because_.message());
}

bool CoordinatorSession::TakeAttempt(const WorkerTurn& turn) {
  if (!detached() || turn.now < next_attempt_) return false;
  next_attempt_ = absl::InfiniteFuture();
  link_ = Link::kResuming;
  ++tried_;
  received_sequence_ = 0;
  turn.out.push_back(OpenStream{++stream_});
  return true;
}

void CoordinatorSession::Reattach(absl::Time now) {
  link_ = Link::kAttached;
  heartbeats_.BeginAnew(terms_.pace.lease, now);
  detached_because_ = absl::OkStatus();
}

void CoordinatorSession::StopTrying() {
  if (detached()) link_ = Link::kEnded;
  StopResuming();
}

void CoordinatorSession::StopResuming() {
  if (resuming()) link_ = Link::kAttached;
}

absl::Time CoordinatorSession::NextDeadline() const {
  if (attached()) return absl::InfiniteFuture();
  return std::min(next_attempt_, detached_since_ + terms_.resume_timeout);
}

}  // namespace coordd
