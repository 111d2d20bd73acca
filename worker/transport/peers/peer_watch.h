// When a rank asks whether the network still reaches a peer, and when it stops asking.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace coordd {

// A connection over which nothing comes says nothing: the peer may be late, or stopped, or the
// network may have lost everything for minutes, which TCP hides by repeating. So the peer's kernel
// is asked, which answers whatever the process does (worker/transport/peers/peer_probe).
//
// PURE; `now` must not decrease.
class PeerWatch {
 public:
  // When nothing has come for this long it is time to ask, and again this long after an answer.
  static constexpr absl::Duration kQuiet = absl::Seconds(2);
  // The next question, when there is no answer to one.
  static constexpr absl::Duration kPatience = absl::Milliseconds(500);
  // How many questions in a row without an answer are silence. Each is a packet and its answer:
  // where every fifth packet is lost, all of them are lost once in 27,000 times, and nothing else
  // may come meanwhile.
  static constexpr int32_t kUnanswered = 10;

  // To be called when something has come since the last turn, or nothing is waited for.
  void Moved(absl::Time now) {
    quiet_since_ = now;
    unanswered_ = 0;
  }
  // REQUIRES: no question is open.
  bool WantsProbe(absl::Time now) const {
    return !asked_ || unanswered_ > 0 || now - quiet_since_ >= kQuiet;
  }
  void Asked(absl::Time now) {
    asked_ = true;
    asked_at_ = now;
  }
  bool PatienceIsOver(absl::Time now) const { return now - asked_at_ >= kPatience; }
  void Answered(absl::Time now) {
    reachable_ = true;
    unanswered_ = 0;
    quiet_since_ = now;
  }
  void NotAnswered() { ++unanswered_; }

  // A network that never lets the questions through proves nothing; `connects`: unless the
  // connection itself, which is being made, does not get through either.
  bool silent(bool connects) const {
    return unanswered_ >= kUnanswered && (reachable_ || connects);
  }

 private:
  bool asked_ = false;
  bool reachable_ = false;
  int32_t unanswered_ = 0;
  absl::Time asked_at_ = absl::InfinitePast();
  absl::Time quiet_since_ = absl::InfinitePast();
};

}  // namespace coordd
