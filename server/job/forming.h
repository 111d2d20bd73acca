// The record of a generation, which is stored before anybody hears of the generation.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/records.pb.h"
#include "server/job/inheritance.h"
#include "server/job/job_token.h"
#include "server/job/job_workers.h"
#include "server/job/reforming.h"
#include "server/job/rendezvous_state.h"

namespace coordd {

// PURE. Not thread-safe. Its record is of the last generation that formed, and no other one was
// said to anybody.
class Forming {
 public:
  const v1::JobRecord& record() const { return record_; }
  void Restore(const v1::JobRecord& record) { record_ = record; }

  void Propose(v1::JobRecord record) { proposed_ = std::move(record); }
  const v1::JobRecord& proposed() const { return proposed_; }
  // What was proposed last is stored.
  void Stored();
  void Formed() { record_ = std::move(proposed_); }  // and nothing has come between
  // The store has refused the record. Returns after how long it is to be tried again;
  // InfiniteDuration: never. `not_stored` tells.
  absl::Duration Failed(Generation number, const absl::Status& status);
  // Why the last one was not stored, a sentence; empty: it was.
  const std::string& not_stored() const { return not_stored_; }
  void Begin() { Stored(); }  // of a job: nothing has failed yet

 private:
  v1::JobRecord record_;
  v1::JobRecord proposed_;     // that is being stored
  int32_t failed_writes_ = 0;  // since the last that was stored
  std::string not_stored_;
};

// Of the generation that `rendezvous` has proposed, with these members.
v1::JobRecord RecordOf(const std::vector<SessionId>& sessions, const JobToken& token,
                       const RendezvousState& rendezvous, const Reforming& reforming,
                       const Survivors& survivors, const JobWorkers& workers);

}  // namespace coordd
