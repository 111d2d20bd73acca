// What this rank has heard from coordd in its generation, as far as another coordd may ask for it.
#pragma once

#include <cstdint>

#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "worker/protocol/received_log.h"

namespace coordd {

// PURE; part of WorkerState, one per generation. docs/design/recovery.md, part B.
//
// Invariant: what is in the log has been carried out here.
class HeardMessages {
 public:
  // `last_process_set`: the highest number that coordd had used before.
  explicit HeardMessages(int32_t last_process_set) : last_process_set_(last_process_set) {}

  // Of the message at hand: its position, and the set of the schedule that it freezes or cuts.
  void Begin(int64_t position) { position_ = position; }
  int64_t position() const { return position_; }
  void NoteSet(ProcessSetId process_set) { set_ = process_set; }
  // It has changed a process set.
  void NoteChange(const v1::ProcessSetChange& change);
  // It has been carried out. Kept, unless nobody else may lack it.
  void Keep(v1::CoordinatorMessage message);

  ReceivedLog& log() { return log_; }
  const ReceivedLog& log() const { return log_; }
  // The highest number that coordd has used.
  int32_t last_process_set() const { return last_process_set_; }
  // Of the last addition or end of a set of which all hear.
  int64_t sets_position() const { return sets_position_; }

 private:
  ReceivedLog log_;
  int64_t position_ = 0;
  ProcessSetId set_;
  int32_t last_process_set_;
  int64_t sets_position_ = 0;
};

}  // namespace coordd
