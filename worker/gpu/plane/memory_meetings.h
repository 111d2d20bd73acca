// Where the ranks of a process set meet before they register memory. (io)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/protocol/store.h"
#include "common/protocol/types.h"
#include "worker/execute/work.h"

namespace coordd {

// A program may call a registration on some ranks and not on others. So what its marker is called
// (DeviceRegistrations) does not follow from how often a rank has called it, but from how often all
// have met: a meeting is a small allgather on the host, and one to which not all come in time is
// left for the next call, which meets them there. Each rank leaves in the store how far it has
// come, so that who is missing has a name.
//
// Of one generation. Thread-safe; in a set one call at a time.
class MemoryMeetings {
 public:
  // Submits a host's allgather of one byte, which has no limit of its own: who stops waiting for it
  // comes back to it.
  using Submit = absl::FunctionRef<absl::StatusOr<std::shared_ptr<Work>>(std::string name)>;

  // `store` (the generation's) and `clock` outlive it. `rank`: this one, in the job.
  MemoryMeetings(Store& store, Clock& clock, int32_t rank)
      : store_(store), clock_(clock), rank_(rank) {}

  // Collective; waits. Returns the meeting's number, which is equal on all ranks, another one each
  // time. `ranks`: of the set. DEADLINE_EXCEEDED: who has not come; the work's and the store's.
  absl::StatusOr<int64_t> Meet(ProcessSetId process_set, absl::Span<const int32_t> ranks,
                               absl::Time deadline, Submit submit);
  // This rank does not go on with what it has met for: others that come later need not try. Waits
  // for a coordd that is away, half a minute at most; what it has not heard by then it is told
  // before this rank's next meeting.
  void GiveUp(ProcessSetId process_set, int64_t number);
  // What to say when a wait behind that meeting has taken too long: DEADLINE_EXCEEDED with the
  // ranks that have not met, or that all have. Asks coordd, for two seconds at most.
  absl::Status TooLong(ProcessSetId process_set, absl::Span<const int32_t> ranks, int64_t number) {
    return NotAll(process_set, ranks, number, 2 * number + 2);
  }

 private:
  struct Meeting {
    int64_t number = 0;
    std::shared_ptr<Work> work;  // nullptr: not submitted yet
  };
  // That which the next call uses.
  absl::StatusOr<Meeting> Current(ProcessSetId process_set, absl::Time deadline);
  void Note(ProcessSetId process_set, const Meeting& meeting);
  absl::StatusOr<bool> SomebodyGaveUp(ProcessSetId process_set, int64_t number,
                                      absl::Time deadline);
  // Of this rank: 2n + 1 when it has come to meeting n, 2n + 2 when it has met there.
  // `is_waiting`: it has not given up.
  absl::Status SetProgress(ProcessSetId process_set, int64_t progress, bool is_waiting,
                           absl::Time deadline);
  absl::Status TellGivenUp(ProcessSetId process_set, int64_t number, absl::Time deadline);
  // What coordd has not heard.
  absl::Status TellUntold(absl::Time deadline);
  // DEADLINE_EXCEEDED, which names those with less progress than that, and who has given up.
  absl::Status NotAll(ProcessSetId process_set, absl::Span<const int32_t> ranks, int64_t number,
                      int64_t progress);

  // Constant after construction.
  Store& store_;
  Clock& clock_;
  const int32_t rank_;

  // Guarded by mu_.
  Mutex mu_;
  std::map<ProcessSetId, Meeting> meetings_ ABSL_GUARDED_BY(mu_);           // that nobody has used
  std::set<std::pair<ProcessSetId, int64_t>> untold_ ABSL_GUARDED_BY(mu_);  // given up
};

}  // namespace coordd
