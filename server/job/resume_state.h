// Who of the members of a generation has come back to a coordd that was started again.
// docs/design/recovery.md, part B.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/records.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/heard_messages.h"
#include "server/generation/resume_merge.h"
#include "server/job/found_sets.h"
#include "server/model/byte_budget.h"

namespace coordd {

struct ResumeBeginning {
  absl::Time at = absl::InfinitePast();
  std::string after = {};  // what had happened, as in "coordd was started again"
};

// PURE. One for a job whose members have to come back, until each of them has, or one has not in
// time. Nothing is planned and nobody else is admitted while it exists: whoever is missing may have
// been told what nobody else knows.
class ResumeState {
 public:
  // What one member may report in all: its messages are bounded, and so is what it keeps
  // (worker/protocol/received_log.h); the rest are process sets and schedules.
  static constexpr int64_t kMaxReportBytes = int64_t{64} << 20;

  // `found`: the process sets with which the generation began; null: none.
  ResumeState(const v1::JobRecord& record, absl::Time deadline, ResumeBeginning beginning = {},
              std::shared_ptr<const FoundSets> found = nullptr);

  Generation generation() const { return Generation{record_.generation()}; }
  int32_t size() const { return record_.members_size(); }
  const v1::MemberRecord& member(Rank rank) const { return record_.members(rank.value); }
  // For those who have not heard of the generation.
  const v1::JobRecord& record() const { return record_; }
  const FoundSets& found() const { return *found_; }
  absl::Time deadline() const { return deadline_; }
  const ResumeBeginning& beginning() const { return beginning_; }
  // Gives the members so much longer, and at least until `earliest`.
  void Forgive(absl::Duration gap, absl::Time earliest) {
    deadline_ = std::max(deadline_ + gap, earliest);
  }

  // The rank whose place the worker has.
  std::optional<Rank> Find(absl::string_view worker_id) const;
  std::optional<Rank> FindLaunch(absl::string_view launch) const;  // as its launcher calls it
  // FAILED_PRECONDITION: the Join does not belong to this state, or is not what its member says.
  // Who waits for the next generation may not have heard that it is this one.
  absl::StatusOr<Rank> Check(const v1::Join& join, absl::string_view cluster_id, Epoch epoch) const;
  // Likewise, of one whose place in the record is known.
  static absl::Status CheckMember(const v1::Join& join, absl::string_view cluster_id, Epoch epoch,
                                  const v1::JobRecord& record, std::optional<Rank> rank);

  // FAILED_PRECONDITION: it was evicted, or expelled, from this generation.
  absl::Status CheckMayReturn(Rank rank) const;

  // `position`: Resume.position; absent: it joins anew, since it has not heard of its generation.
  // Its report then is empty. REQUIRES: nobody has the place.
  void Came(Rank rank, SessionId session, std::optional<int64_t> position);
  void Gone(Rank rank);  // its stream has ended; it may come again
  // The member will not come back, since its process has ended: the generation is over, for
  // `reason`.
  void NoteLost(const v1::Departure& departure, const std::string& reason);
  // The member has left, as it was asked to, and does not come again: the generation is over.
  // REQUIRES: it is Gone.
  void Left(Rank rank, const v1::Departure& departure, const std::string& reason);
  // INVALID_ARGUMENT: it has reported all already, or too much, or what cannot be read.
  absl::Status Report(Rank rank, const v1::ResumeReport& part);
  // What the reports take beyond what is usual, all together and of one.
  int64_t extra_bytes() const { return extra_bytes_ + BeyondUsual(heard_.bytes()); }
  int64_t report_bytes(Rank rank) const { return At(rank).report.bytes; }

  std::optional<SessionId> session_of(Rank rank) const;  // whoever is back, reported or not
  bool is_new(Rank rank) const { return At(rank).is_new; }
  int32_t back() const;
  // Nobody is waited for any more: all have reported, except, once it is over, for those of whom a
  // member has heard that they are lost.
  bool complete() const;
  std::vector<Rank> Missing() const;
  // Why the generation cannot go on, once a member has said that it is over; and who was lost, as
  // it has heard.
  const std::optional<std::string>& over() const { return over_; }
  std::vector<v1::Departure> Lost() const;
  const v1::Departure* left(Rank rank) const;  // null: it has not said goodbye
  // Puts the reports together; nullopt: it has looked at so many entries, and goes on with the next
  // call. Whoever comes or goes in between ends that. REQUIRES: complete, and not over. Statuses:
  // as MergeReports.
  std::optional<absl::StatusOr<ResumedGeneration>> Merge(int64_t entries);
  bool merging() const { return merge_ != nullptr; }
  // Of what somebody who came or went has ended, until it is null: to be freed in parts.
  std::unique_ptr<ReportMerge> TakeEnded();
  int64_t Free(int64_t most);  // as Remains::Free, once it is over

 private:
  struct Member {
    std::optional<SessionId> session;
    bool is_new = false;
    bool reported = false;
    MemberReport report;
    int64_t bytes = 0;  // on the wire
  };
  Member& Changed(Rank rank) {
    EndMerge();
    return members_[static_cast<size_t>(rank.value)];
  }
  void EndMerge() {
    if (merge_ != nullptr) ended_.push_back(std::move(merge_));
  }
  Member& At(Rank rank) { return members_[static_cast<size_t>(rank.value)]; }
  const Member& At(Rank rank) const { return members_[static_cast<size_t>(rank.value)]; }

  v1::JobRecord record_;
  std::shared_ptr<const FoundSets> found_;
  ResumeBeginning beginning_;
  absl::Time deadline_;
  std::vector<Member> members_;  // by rank
  HeardMessages heard_;          // of their reports
  int64_t extra_bytes_ = 0;      // likewise, without heard_
  absl::flat_hash_map<std::string, Rank> by_worker_id_, by_launch_;
  int32_t reported_ = 0;
  std::optional<std::string> over_;        // said once, also if whoever said it is gone again
  std::map<int32_t, v1::Departure> lost_;  // by rank; empty unless it is over
  std::unique_ptr<ReportMerge> merge_;     // of all that is above, which does not change
  std::vector<std::unique_ptr<ReportMerge>> ended_;
};

}  // namespace coordd
