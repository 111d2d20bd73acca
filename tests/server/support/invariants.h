// What must hold over everything that coordd ever sends, whatever comes in. Tests, stories, the
// simulator and the fuzzers show it every input and every effect. (What must hold within the state
// at one moment is CoordinatorState::CheckConsistency.)
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/model/effects.h"

namespace coordd {

// Not thread-safe. INTERNAL names what was broken; nothing is checked after that.
//
// Numbers are those of the project's list of invariants:
//  I1, I3  a generation is announced once to each member; its ranks are a bijection on its members,
//          places and node runs agree with each other
//  I2      generations of a job grow, and a session's messages never go back to an older one
//  I5      of a durable coordd: a generation is announced once it is stored, under a number that
//  was
//          never proposed before
//  I6      nothing is planned in a generation that has ended
//  I7      a call is answered at most once, a closed session gets nothing more
//  I8      all members of a process set get the same plans in the same order, numbered without gaps
//          on the set's lane; every planned tensor was submitted by every member, or by a rank that
//          has joined and gets its spec; and every submission is answered once
//  I9      a set is announced to its members before its first plan and has none after its end; all
//          ranks get the same answer to a request for a set, once; no number is used twice. In the
//          next generation each set has exactly those of its workers that are members
//  I10     all members of a process set get the same schedules and the same cuts
//  I11     slots of a set are given in order, to tensors of the same plan, one name for all ranks;
//          a plan names only those that its members keep
//
// After a restart of coordd the members of a generation come back, and what nobody has heard never
// happened. Nothing is planned before all are back (I8): each hears what others had heard and it
// had not, as it was said then, and Resumed; and all hear Resumed, or their Membership, at once.
class HistoryChecker {
 public:
  // `durable`: what was not stored must not be announced.
  explicit HistoryChecker(bool durable = false) : durable_(durable) {}

  void Saw(const Inbound& in);
  absl::Status Saw(const Effects& effects);
  // coordd has died, all its streams are gone, and another goes on from what is stored. What was
  // announced before stays announced, and its members may come back to it.
  void SawRestart();

 private:
  // Submissions of one name in one process set without an answer. A rank may send or receive a
  // tensor and reduce another of its name; a failure does not say which of the two it is about.
  struct Open {
    int64_t plain = 0, pairwise = 0;
    int64_t failed = 0;  // of these, either

    void Submit(bool is_pairwise) { ++(is_pairwise ? pairwise : plain); }
    // Each false: there is nothing that could be answered so.
    bool Plan(bool is_pairwise);
    bool Fail();
    void Forget();  // the plain ones
  };
  struct Member {
    std::string job, worker_id;
    bool keeps_sets = false, knows_slots = false, knows_topology = false;
    bool survives = false;  // a generation, and waits for the next
    int64_t epoch = 0;
    Generation generation;
    int32_t rank = -1;
    std::map<int32_t, int64_t> last_batch;  // by lane
    int64_t slots_kept = 0;                 // of each set
    std::map<int32_t, int64_t> last_slot;   // that it has heard of, by set
    // By process set and tensor. Sends and receives are in set 0.
    std::map<std::pair<int32_t, std::string>, Open> open;
    bool has_joined() const {
      const auto join = open.find({0, "join"});
      return join != open.end() && join->second.plain > 0;
    }
    int64_t last_request = 0;  // for a process set
    std::set<int64_t> open_requests;
    std::set<std::string> open_names;  // of sets that their members make alone
    std::set<int32_t> sets = {0};      // announced to it and not ended
    std::map<int64_t, std::vector<std::pair<int32_t, std::string>>> schedules;  // tensors, by id
    bool awaits_sets = false;  // of the generation before, nothing else
    size_t found_sets = 0;
    bool resuming = false;  // it has not heard Resumed yet
    int64_t position = 0;   // that it has heard
    v1::ResumeReport report;
  };
  using SlotNames = std::map<std::pair<int32_t, int64_t>, std::string>;  // by set and number
  struct SetRecord {
    std::vector<int32_t> ranks;
    int64_t request = 0;  // 0: a pair, or one with a name
    bool ended = false;
    int64_t ended_at = 0;  // position of the word
    std::string name = {};
    bool is_pair() const { return request == 0 && name.empty(); }
    bool operator==(const SetRecord&) const = default;
  };
  struct Said {
    std::string what;      // serialised
    int64_t position = 0;  // 0: it changes nothing
  };
  struct GenerationRecord {
    int32_t size = 0;
    std::vector<v1::NodeRun> runs;
    std::string topology;  // serialised
    std::map<int32_t, SessionId> session_of_rank;
    std::map<int32_t, std::vector<std::vector<std::string>>> batches;  // by lane, sequence - 1
    std::map<int32_t, SetRecord> sets;
    std::map<int32_t, std::vector<int32_t>> found_sets;  // that it began with
    int32_t last_found_set = 0;
    std::map<int32_t, std::string> worker_of_rank;
    std::map<std::string, int32_t> survivors;  // of the one before: their ranks in this one
    bool keeps_sets = true;                    // all its members know that
    SlotNames slots;                           // since coordd was started last
    SlotNames slots_before;                    // of the last coordd before that gave any
    std::map<int64_t, Said> answers;           // to requests
    std::map<int64_t, std::string> schedules;  // serialised
    std::map<int64_t, int64_t> cuts;
    bool ended = false;
    bool reforms = false;      // that another one follows
    bool interrupted = false;  // coordd has died since, and its members have not come back yet
    bool taken_up = false;     // some time

    // What a new coordd gives begins anew; what was missed is still told by the old ones.
    void ForgetSlots() {
      if (!slots.empty()) slots_before = std::exchange(slots, {});
    }
  };
  using GenerationId = std::pair<std::string, Generation>;

  template <typename... Args>
  static absl::Status Broken(const Args&... what) {
    return absl::InternalError(absl::StrCat(what...));
  }
  void SawEnd(SessionId session);
  void SawMessage(SessionId session, const v1::WorkerMessage& message);
  absl::Status SawDelivery(SessionId session, const v1::CoordinatorMessage& message);
  absl::Status SawMembership(SessionId session, Member& member,
                             const v1::CoordinatorMessage& message);
  absl::Status SawPlan(Member& member, const v1::CollectivePlan& plan);
  absl::Status SawBatch(Member& member, GenerationRecord& generation, const v1::FusedBatch& batch);
  absl::Status SawSetChange(Member& member, const v1::ProcessSetChange& change);
  absl::Status SawSets(Member& member, const v1::ProcessSets& part);
  absl::Status CheckSurvival(const GenerationId& id) const;
  absl::Status SawSchedule(Member& member, const v1::Schedule& schedule);
  absl::Status SawCut(Member& member, const v1::Cut& cut);
  absl::Status SawFailures(Member& member, const v1::TensorFailures& failures);
  absl::Status CheckComplete(const GenerationId& id) const;

  void SawSuspension(const std::string& job);
  absl::Status SawPersist(const Persist& persist);

  // invariants_slots.cc
  // The names in a batch; none: a slot is among them that was not given.
  static std::vector<std::string> NamesIn(const SlotNames& slots, const v1::FusedBatch& batch);
  // A member is told how many it keeps; their numbers begin anew.
  static absl::Status SawSlotsKept(Member& member, int64_t slots);
  static absl::Status SawSlots(const Member& member, const v1::FusedBatch& batch);
  static absl::Status SawBindings(Member& member, GenerationRecord& generation,
                                  const v1::CollectivePlan& plan);

  // invariants_resume.cc
  void SawResumingJoin(SessionId session, const v1::Join& join);
  absl::Status SawMissed(Member& member, const v1::CoordinatorMessage& message);
  absl::Status SawResumed(SessionId session, Member& member, const v1::CoordinatorMessage& message);
  void ForgetUnheard(const GenerationId& id);
  static std::vector<std::pair<int32_t, std::string>> TensorsOf(const v1::Schedule& schedule);

  const bool durable_;
  std::set<GenerationId> stored_;
  std::map<std::string, Generation> proposed_;  // the highest, by job
  std::map<SessionId, Member> sessions_;        // from Join to the end of the session
  std::set<SessionId> closed_;
  std::set<CallId> calls_;  // without an answer
  std::map<GenerationId, GenerationRecord> generations_;
  std::map<std::string, Generation> newest_;  // by job
  std::set<GenerationId> announced_;          // in the effects under inspection
  absl::Status broken_;
};

}  // namespace coordd
