// When what has come in is worth a turn of the coordinator (docs/design/control.md, "The hot
// loop"): a report changes nothing while a member has not reported at all, since nothing can be
// planned without it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"

namespace coordd {

// What is known of a generation's members at the end of a turn.
struct MembersReports {
  Generation generation;
  const std::vector<SessionId>* members = nullptr;  // by rank
  // Nothing of the set of all ranks is planned before all of them have reported it.
  bool all_are_asked = false;
  bool none_is_pending = false;  // so nobody's report is known that is not planned
};

// PURE, not thread-safe: the inbox guards it.
//
// A round begins when nothing is pending, and nothing of it can be planned until each member has
// said something since. Streams are counted: a node session has spoken when it has brought as many
// words as it has members. So it errs to one side only: what is held back decides nothing, what is
// not held back may decide nothing either.
class WakeRule {
 public:
  // Whether it can matter to the set of all ranks only.
  static bool IsReport(const v1::WorkerMessage& message);

  // A message that says what is ready.
  struct Report {
    SessionId stream;             // of a worker, or of a node
    int32_t words = 1;            // of members of the node
    bool is_nothing_else = true;  // than IsReport of each: otherwise it is worth a turn
  };

  // What a report is worth that has been queued. During a turn Decided says that.
  enum class Worth {
    kWaits,      // nothing: others have to report first
    kCompletes,  // a turn: all have reported
    kTurn,       // a turn, since nothing is known of others
  };
  Worth Hear(const Report& report);

  // The coordinator has taken everything that was queued: its turn begins.
  void Taken();
  // The turn has ended, with this of all jobs that have a generation. Whether what was queued
  // meanwhile is worth another turn at once.
  bool Decided(absl::Span<const MembersReports> jobs);

  size_t streams() const { return streams_.size(); }

 private:
  struct Round {
    Generation generation;
    SessionId first_member;  // no two generations have both in common
    std::vector<SessionId> streams;
    int64_t since = 0;           // the turn in which it began: what came after Taken is part of it
    int32_t silent = 0;          // streams that have not spoken in it
    int64_t turn = 0;            // the last one since whose Taken something has come
    int32_t spoken_in_turn = 0;  // streams that have spoken since Taken
    int64_t made = 0, seen = 0;  // the first and the last turn at whose end it was named
  };
  struct Stream {
    std::shared_ptr<Round> round;
    int32_t members = 0;
    int64_t since = 0, turn = 0;  // the round and the turn that these count words of
    int32_t in_round = 0, in_turn = 0;
  };

  Round& RoundOf(const MembersReports& job);
  void Forget(const Round& round);

  absl::flat_hash_map<SessionId, Stream> streams_;
  std::vector<std::shared_ptr<Round>> rounds_;
  int64_t turn_ = 1;
  bool deciding_ = false;
};

}  // namespace coordd
