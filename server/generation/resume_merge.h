// What the members of a generation know of it, put together by a coordd that was started again:
// what each lacks, and from where on the generation continues. docs/design/recovery.md, part B.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/heard_messages.h"
#include "server/generation/member_report.h"

namespace coordd {

// By rank: what others have heard and it has not, in order.
using MissedMessages = std::vector<std::vector<std::shared_ptr<const v1::CoordinatorMessage>>>;

struct ResumedGeneration {
  struct Set {
    ProcessSetId id;
    std::vector<Rank> ranks;
    bool is_pair = false;
    std::string name;      // its members alone have asked for it
    int64_t launched = 0;  // sequence of the last batch that was planned, on the set's lane
  };
  struct Scheduled {
    v1::Schedule schedule;  // in one part
    bool frozen = false;    // Freeze was said: the replies are still to come
  };
  // A removal that some ranks outside of the set have heard, and no member of it: what coordd had
  // told the members before (a plan, a cut) may be lost. It is answered anew, by those who have not
  // heard it; the set goes on until then.
  struct Removal {
    int64_t request = 0;
    ProcessSetId process_set;
    int64_t position = 0;
  };
  int64_t position = 0;              // the last that anybody has heard
  std::vector<Set> sets;             // by number; 0 among them
  std::vector<Scheduled> schedules;  // in force, by id; every member has, or will have, heard of it
  int32_t last_process_set = 0;
  int64_t last_schedule = 0;
  std::vector<int64_t> answered_requests;  // by rank, once it has heard what it lacks
  std::vector<Removal> removals;           // to be answered anew
  // So many of its sets and schedules a generation has taken (GenerationState::Restore).
  size_t sets_taken = 0, schedules_taken = 0;
  MissedMessages missed;
};

// A pure function of the reports, by rank, with what they say was heard. INTERNAL: they contradict
// each other; names both ranks. FAILED_PRECONDITION: what one lacks, those who had heard it have
// forgotten. RESOURCE_EXHAUSTED: too much would have to be told to too many again.
//
// Why this is all that has to be known. coordd says what concerns several ranks (a plan, a process
// set, a schedule) under a position, and each rank hears what is said to it in the order of
// positions. So what a rank has heard is all that was said to it up to its own position, and what
// nobody reports was either heard by nobody, and so never happened, or is known to have been heard
// by all (worker/protocol/received_log.h). The union of what the ranks have heard is therefore
// closed: who is told the rest of it, in order, knows all that any rank's actions have depended on.
// (One thing is said to all because of what only some were told before: the end of a process set.
// See Removal.) `found`: the process sets with which the generation began. They count as long as a
// rank has heard of nothing since: its own removal of one cannot be over for the others and
// forgotten.
absl::StatusOr<ResumedGeneration> MergeReports(absl::Span<const MemberReport> reports,
                                               const HeardMessages& heard,
                                               const v1::ProcessSets& found = {});

// The same over turns, since it may be many millions of entries: all members times all that each of
// them says. What it was given outlives it, and does not change.
class ReportMerge {
 public:
  // Of entries: about 5 ms of a busy processor.
  static constexpr int64_t kEntriesATurn = 1 << 14;
  // Of as many as cost less than the last one's Join and report.
  static constexpr int64_t kEntriesAtOnce = 1024;

  // `found`: in parts, in order.
  ReportMerge(std::vector<const MemberReport*> reports, const HeardMessages& heard,
              std::vector<const v1::ProcessSets*> found);
  ~ReportMerge();
  ReportMerge(const ReportMerge&) = delete;
  ReportMerge& operator=(const ReportMerge&) = delete;

  // Looks at about so many more; nullopt: there are others. REQUIRES: it was not done.
  std::optional<absl::StatusOr<ResumedGeneration>> Continue(int64_t entries = kEntriesATurn);
  int64_t Free(int64_t most);  // as Remains::Free, once it is not needed

 private:
  class Steps;

  std::unique_ptr<Steps> steps_;
};

}  // namespace coordd
