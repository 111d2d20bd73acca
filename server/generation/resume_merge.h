// What the members of a generation know of it, put together by a coordd that was started again:
// what each lacks, and from where on the generation continues. docs/design/recovery.md, part B.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/heard_messages.h"

namespace coordd {

// What one rank reports, all parts of its report in one: of what every rank reports alike, or of
// each lane, no more than is merged.
struct MemberReport {
  struct Launched {
    int32_t lane = 0;
    int64_t sequence = 0;  // of the last batch
  };

  // INVALID_ARGUMENT: it does not say to whom each message went.
  absl::Status Add(const v1::ResumeReport& part, HeardMessages& heard);

  int64_t position = 0;  // the last that it has acted on; 0: it has not even heard its Membership
  std::vector<Launched> launched;
  std::vector<uint32_t> received;  // ids of `heard`, in order
  v1::ResumeReport rest;           // without lanes, received messages and what is in the store
  int64_t bytes = 0;               // of memory, without `heard`
};

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

}  // namespace coordd
