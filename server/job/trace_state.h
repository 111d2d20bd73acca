// A trace of a job's ranks: who is asked, what has come, when it is answered.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/model/effects.h"
#include "server/model/turn.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe. One for each job, and one trace at a time.
//
// All ranks are told to begin and say how far each of them is in the schedule; so the first
// repetition that all of them record as a whole is known, and all end by themselves after the same
// one. Without a schedule they are told to end after a time. Whoever does not answer in time, or is
// gone, is missing in the answer, which says so; the others are in it.
class TraceState {
 public:
  static constexpr int32_t kStepsMax = 10000;
  static constexpr double kSecondsMax = 300;
  static constexpr absl::Duration kStepsWait = absl::Minutes(5);
  static constexpr absl::Duration kBeginWait = absl::Seconds(5);
  static constexpr absl::Duration kSendWait = absl::Seconds(10);
  // What coordd holds until the answer, and what a rank may send of it.
  static constexpr int64_t kBytesMax = 64 << 20;
  static constexpr int64_t kBytesOfRankMax = 4 << 20;
  static constexpr int64_t kChunkCosts = 64;  // besides its bytes
  static constexpr size_t kRanksMax = 1024;

  struct Member {
    SessionId session;
    bool traces = false;  // it knows what to do
    std::string hostname;
    int32_t pid = 0;
  };
  // `prototype`: of messages to the members: epoch and generation. `by_rank`: all of them. `steps`:
  // the lane of the schedule whose repetitions are steps; 0: there is none.
  absl::Status Begin(const TraceCall& call, const v1::CoordinatorMessage& prototype,
                     std::vector<Member> by_rank, LaneId steps, const Turn& turn);
  bool under_way() const { return phase_ != Phase::kNone; }
  // The lane whose repetitions are the trace's steps; 0: it has none. When that lane ends,
  // EndEarly.
  LaneId lane() const { return under_way() ? lane_ : LaneId{0}; }

  // REQUIRES: the chunk is within its bounds (validate_message.h). What is not asked for is
  // ignored.
  void OnChunk(Rank rank, const v1::TraceChunk& chunk, const Turn& turn);
  void OnGone(Rank rank, const std::string& why, const Turn& turn);
  void OnAllGone(const std::string& why, const Turn& turn);  // answers with what there is
  // The generation or the schedule has ended: what there is is collected now.
  void EndEarly(const std::string& why, const Turn& turn);
  void Cancel(CallId call, Effects& effects);
  void Fail(const absl::Status& status, Effects& effects);

  void Tick(const Turn& turn);
  absl::Time NextDeadline() const { return deadline_; }

 private:
  enum class Phase { kNone, kBeginning, kRecording, kCollecting };
  struct Asked {
    Member member;
    bool begun = false;
    bool done = false;  // nothing more is expected of it
    int64_t bytes = 0;
  };

  absl::Status Check(const v1::TraceRequest& request) const;
  void Deliver(v1::TraceAction action, Effects& effects) const;  // to those who are not done
  void WhenAllHaveBegun(const Turn& turn);
  void Record(const Turn& turn);
  void Collect(const Turn& turn);
  void WhenAllAreDone(const Turn& turn);
  void AddNote(const std::string& note);
  void Reset();

  int64_t last_id_ = 0;
  Phase phase_ = Phase::kNone;
  CallId call_;
  v1::CoordinatorMessage prototype_;
  absl::Time began_at_;
  absl::Time deadline_ = absl::InfiniteFuture();
  absl::Duration seconds_;  // to record, without steps
  LaneId lane_;             // of the steps; 0: there are none
  int64_t from_cycle_ = 0;
  int64_t bytes_of_rank_ = 0;
  std::vector<Asked> asked_;  // by rank
  v1::TraceReply reply_;
};

}  // namespace coordd
