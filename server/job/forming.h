// The record of a generation, which is stored before anybody hears of the generation.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/topology.h"
#include "common/protocol/types.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/job/found_sets.h"
#include "server/job/inheritance.h"
#include "server/job/job_messages.h"
#include "server/job/job_token.h"
#include "server/job/job_workers.h"
#include "server/job/next_generation.h"
#include "server/job/reforming.h"
#include "server/job/rendezvous_state.h"
#include "server/model/server_options.h"
#include "server/model/turn.h"

namespace coordd {

// PURE. Not thread-safe. Its record is of the last generation that formed, and no other one was
// said to anybody.
class Forming {
 public:
  // Without the process sets, which are found().
  const v1::JobRecord& record() const { return record_; }
  const std::shared_ptr<const FoundSets>& found() const { return found_; }
  // `head`: of the messages of its generation.
  void Restore(const v1::JobRecord& record, const v1::CoordinatorMessage& head);

  // A proposal, of which not all may be known yet. The one before is for nothing.
  void Propose(std::unique_ptr<NextGeneration> next, const Turn& turn);
  bool making() const { return next_ != nullptr && !next_->whole(); }
  NextGeneration* next() { return next_.get(); }  // null: none is proposed
  // The proposal of this number, which is formed or will not be. Null: it is another one by now.
  std::unique_ptr<NextGeneration> Take(Generation number);
  void Abandon(const Turn& turn);  // there is no proposal any more
  // What was proposed last is stored.
  void Stored();
  void Formed(const NextGeneration& formed, const Turn& turn);
  // The store has refused the record. Returns after how long it is to be tried again;
  // InfiniteDuration: never. `not_stored` tells.
  absl::Duration Failed(Generation number, const absl::Status& status);
  // Why the last one was not stored, a sentence; empty: it was.
  const std::string& not_stored() const { return not_stored_; }
  void Begin() { Stored(); }  // of a job: nothing has failed yet

 private:
  v1::JobRecord record_;
  std::shared_ptr<const FoundSets> found_ = std::make_shared<const FoundSets>();
  std::unique_ptr<NextGeneration> next_;  // that is being made, or stored
  int32_t failed_writes_ = 0;             // since the last that was stored
  std::string not_stored_;
};

// The generation that `rendezvous` has proposed, with these members.
std::unique_ptr<NextGeneration> NextOf(const std::vector<SessionId>& sessions,
                                       const JobToken& token, const RendezvousState& rendezvous,
                                       const Reforming& reforming, const Survivors& survivors,
                                       const JobWorkers& workers, const JobMessages& messages,
                                       const ServerOptions& options);

// That it has formed, a sentence.
std::string FormedText(Generation number, const Topology& topology);

}  // namespace coordd
