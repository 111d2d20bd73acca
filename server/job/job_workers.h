// The workers of a job: who is in, who counts for those who come, and whose stream has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/topology.h"
#include "common/protocol/types.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/session.pb.h"
#include "server/job/admission.h"
#include "server/job/executed_counts.h"
#include "server/job/told_progress.h"
#include "server/model/byte_budget.h"

namespace coordd {

struct JobWorker {
  v1::Join join;           // without the token
  int64_t word_bytes = 0;  // JobWorkers::Recount
  int64_t door_bytes = 0;  // likewise, of one that has been in no generation yet
  Generation generation;   // 0: waiting
  Place place;             // of a member
  // For a survivor that waits: the generation that it was in, its rank there and its report.
  Generation previous;
  int32_t previous_rank = -1;
  v1::RecoveryReport report;  // without its process sets
  SaidSets saying;            // of them, until the report is whole
  KeptSets::Kept its_sets;    // from then on
  absl::Time last_heard;
  ToldProgress progress;                            // of the last heartbeat
  v1::GpuHealth gpu_health;                         // likewise; nothing is set: it has told none
  std::shared_ptr<const v1::DeviceUse> device_use;  // of the generation; null: not told
  std::shared_ptr<const v1::HostEdges> host_edges;  // likewise
  absl::Time heartbeat_at = absl::InfinitePast();
  absl::Time heartbeat_before = absl::InfinitePast();  // the last but one
  // Others wait for it: it was asked where its program is, and what it has said.
  bool stack_asked = false;
  std::string stack;
  double bytes_per_second = 0;  // between the last two heartbeats
  // By the job, before it became a member for the first time; nullopt: it has not.
  std::optional<ExecutedCounts::Count> executed_before_it;
  std::optional<v1::ProcessExit> exit;  // from its launcher
  // Its stream has ended, with `stream_end`: when it departs without its launcher's word.
  absl::Time departs_at = absl::InfiniteFuture();
  std::string stream_end;
  absl::Time blamed_at = absl::InfinitePast();  // last, as one end of a link that was silent

  // Whether the worker is a member of a generation that is there, or of one that is over while it
  // waits for the next.
  bool IsMember() const { return generation != Generation{0} || previous_rank >= 0; }
  bool departs() const { return departs_at != absl::InfiniteFuture(); }
  bool IsFrom(const std::string& worker_id) const { return join.worker_id() == worker_id; }

  // `shared`: of its job.
  void NoteHeartbeat(const v1::Heartbeat& told, SharedWords& shared, absl::Time now);
  // It has a place in a generation that begins: nothing of the one before is left.
  void Enter(Generation of, const Place& its, absl::Time now);
  // Its generation is over and it has said what it has of it: it waits for the next one.
  void AwaitNext();
};

// "rank 2 (host node3, pid 4711)"; of one that waits "worker ID (host node3, pid 4711)".
std::string Who(const JobWorker& worker);
// "GPU-8f3c…, host b".
std::string DeviceOf(const JobWorker& worker);

// RESOURCE_EXHAUSTED: what a worker says, "this Join", takes so many bytes, for which `words` has
// no room.
absl::Status NoRoomFor(absl::string_view what, int64_t bytes, const BudgetShare& words);

// PURE; `now` must not decrease. Not thread-safe: one owner. By session.
//
// Whoever is added counts for admission until it is released, which may be before it is gone: a
// member of a generation that none follows is in nobody's way.
class JobWorkers {
 public:
  using Map = std::map<SessionId, JobWorker>;

  // What workers say beyond what is usual is counted for the owner of the job, from now on.
  void Bind(const std::shared_ptr<ByteBudget>& budget) {
    words_.Bind(budget == nullptr ? nullptr : budget->words());
    joins_.Bind(budget == nullptr ? nullptr : budget->joins());
  }
  // RESOURCE_EXHAUSTED of these: the workers of his jobs have said too much for this, too.
  absl::Status HasRoomFor(const v1::Join& join) const;
  // RESOURCE_EXHAUSTED: too many workers of his jobs are in no generation yet.
  absl::Status MayWait(const v1::Join& join) const;
  // After a part of its report has come, and after the last one; it has none, then.
  absl::Status TakeReport(JobWorker& worker, bool is_whole);
  // After its heartbeat. What there is no room for is not kept.
  void CountUse(JobWorker& worker);
  // It has a place in a generation that begins.
  // `executed`: by the job, in the generations before.
  void Enter(SessionId session, Generation of, const Place& its,
             const ExecutedCounts::Count& executed, absl::Time now);
  JobWorker& Add(SessionId session, JobWorker worker);  // REQUIRES: Check(its join) is OK
  JobWorker Take(SessionId session);                    // it is gone, and released by its owner
  void Remove(SessionId session);                       // it is gone, and released
  void Release(const JobWorker& worker) { admission_.Remove(worker.join); }
  void Clear();
  // All are gone: who of them were members, by worker id, and the ends of their processes that a
  // launcher has told already.
  struct Disbanded {
    std::set<std::string> members;
    std::vector<v1::LaunchedExit> exits;
  };
  Disbanded Disband();

  SharedWords& shared() { return shared_; }

  JobWorker& at(SessionId session) { return workers_.at(session); }
  const JobWorker& at(SessionId session) const { return workers_.at(session); }
  const JobWorker* Find(SessionId session) const;  // null: it is not in
  // Of those with this id the one that came first. Looks at all of them.
  std::optional<SessionId> SessionOf(const std::string& worker_id) const;
  // Of members, or of those who wait, in the order of their sessions.
  std::vector<SessionId> Members() const;
  std::vector<SessionId> Waiting() const;
  std::vector<SessionId> All() const;
  bool contains(SessionId session) const { return workers_.contains(session); }
  Map::iterator begin() { return workers_.begin(); }
  Map::iterator end() { return workers_.end(); }
  Map::const_iterator begin() const { return workers_.begin(); }
  Map::const_iterator end() const { return workers_.end(); }
  size_t size() const { return workers_.size(); }
  bool empty() const { return workers_.empty(); }

  // Whether it fits those who count (Admission::Check).
  absl::Status Check(const v1::Join& join) const { return admission_.Check(join); }
  bool Counts(const std::string& worker_id) const { return admission_.Contains(worker_id); }
  size_t counted() const { return admission_.size(); }

  // The stream has ended; its worker is in until it is taken, at `at` or when its end is explained.
  void StreamEnded(SessionId session, absl::Time at, absl::string_view detail);
  bool anyone_departs() const { return departing_ > 0; }
  // In the order of their ends, whoever is explained or has waited long enough.
  std::vector<SessionId> DueToDepart(absl::Time now) const;
  absl::Time NextDeparture() const;
  // A launcher has told how a process ended; whether it is in, or was when its stream ended.
  bool NoteExit(const v1::LaunchedExit& in);

 private:
  void Recount(JobWorker& worker);

  Map workers_;
  int64_t word_bytes_ = 0;  // of workers_
  int64_t door_bytes_ = 0;  // likewise
  BudgetShare words_;
  BudgetShare joins_;
  SharedWords shared_;
  Admission admission_;
  int32_t departing_ = 0;  // of workers_, those whose stream has ended
};

}  // namespace coordd
