// Which members of one process set have submitted which tensors, in one generation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/protocol/tensor_spec.h"
#include "common/protocol/types.h"
#include "server/generation/kept_names.h"
#include "server/generation/readiness_bundles.h"
#include "server/generation/readiness_entries.h"
#include "server/generation/tombstones.h"
#include "server/members/member_list.h"
#include "server/members/rank_set.h"
#include "server/model/byte_budget.h"

namespace coordd {

struct ReadyTensor {
  TensorSpec spec;          // as the first rank reported it
  int64_t fused_bytes = 0;  // that it takes in a rank's buffer: allgather counts all ranks' parts
  absl::Time first_report;
  // A member that has joined counts without having submitted it: it needs to be told the spec.
  bool for_joined = false;
  int64_t slot = 0;  // of the Known as which ranks have reported it; 0: as none
};

// Ranks that must hear that a tensor failed, now.
struct FailedTensor {
  ProcessSetId process_set;  // as the ranks' reports name it
  std::string name;
  TensorFault fault;
  std::vector<Rank> ranks;
};

struct PendingTensor {
  ProcessSetId process_set;
  std::string name;
  absl::Time since;           // the first rank's report
  std::vector<Rank> ready;    // the first kMaxNamedRanks
  std::vector<Rank> missing;  // likewise. Of a group that is incomplete: who owes any of it
  int32_t missing_count = 0;
  int32_t ready_count = 0;
  std::string on_devices = {};  // DeviceWaits: which ranks have come how far, a phrase
};

// The bounds of all process sets of a generation together.
struct ReadinessBounds {
  int64_t max_pending = 1 << 20;               // tensors, tombstones included
  int64_t max_state_bytes = int64_t{1} << 30;  // bits grow with tensors times ranks
};

// Sums over the tables of a generation, kept by them.
struct ReadinessTotals {
  explicit ReadinessTotals(int32_t world_size, std::shared_ptr<ByteBudget> budget = nullptr)
      : kept(budget), share(std::move(budget)), lag(static_cast<size_t>(world_size)) {}

  KeptNames kept;
  int64_t pending = 0;  // tensors
  int64_t tombstones = 0;
  int64_t state_bytes = 0;
  BudgetShare share;  // of the job's owner: state_bytes
  int64_t stalled = 0;
  // By rank: mean delay behind the first rank to report a tensor, later tensors counting more: the
  // newest weighs 1 / 16, so about the last 16 count. An integer: a product with a double is the
  // most expensive part of a report. What is executed without reports counts by CycleLateness.
  static constexpr int64_t kLagDivisor = 16;
  std::vector<absl::Duration> lag;
};

// PURE; `now` must not decrease. Not thread-safe. One for each process set: no set knows of
// another, so none waits for another.
//
// Each report is answered exactly once: it becomes part of a ReadyTensor, or its rank stands in a
// FailedTensor of that name. A tensor that fails is forgotten, so that it can be submitted again;
// ranks that have not named it yet are answered with the same fault when they do.
//
// A member that has joined (has no more data) counts as in for every tensor, except where its data
// is asked for: the root of a broadcast, reduce or gather and the other side of a send or receive.
// That tensor fails.
//
// What is pending is in ReadinessEntries, what is reported alike in TensorBundles. Implemented
// in readiness_table.cc (reports, ends) and readiness_queries.cc (what it tells, and its end).
class ReadinessTable {
 public:
  using Known = KnownTensor;
  using Slots = ReportedSlots;
  static constexpr size_t kMaxNamedRanks = 64;

  // `process_set`: how reports and failures name it. `totals` outlives it.
  ReadinessTable(ProcessSetId process_set, MemberList members, const ReadinessBounds& bounds,
                 ReadinessTotals& totals);
  ~ReadinessTable();
  ReadinessTable(const ReadinessTable&) = delete;
  ReadinessTable& operator=(const ReadinessTable&) = delete;

  // REQUIRES of all: `rank` is a member; of Report: it has not joined.

  // `rank` has submitted a tensor. Faults: INVALID_ARGUMENT (another rank's differs; names both
  // values), ALREADY_EXISTS (this rank's is still pending), RESOURCE_EXHAUSTED (too many are
  // pending; only this rank hears of it).
  void Report(Rank rank, const TensorSpec& spec, absl::Time now, std::vector<FailedTensor>& failed);

  // The same at a fraction of the cost, for the usual case: another rank has reported the tensor,
  // `same` says that its spec is what `rank` reports too, and nothing is wrong with that. False,
  // and nothing has happened, in every other case.
  bool ReportSame(Rank rank, absl::string_view name,
                  absl::FunctionRef<bool(const TensorSpec&)> same, absl::Time now,
                  std::vector<FailedTensor>& failed);

  // What Report does with the spec. `known` stays where it is until Forget.
  void ReportKnown(Rank rank, Known& known, absl::Time now, std::vector<FailedTensor>& failed);
  // The same without the rank's lag (NoteLag), for the usual case: it is pending, and is no part of
  // a group. False, and nothing has happened, in every other case. REQUIRES: nobody has joined.
  bool ReportPending(Rank rank, Known& known, std::vector<FailedTensor>& failed);
  void Forget(Known& known);

  // Several ranks at once.
  struct Reporters {
    Reporters(const MemberList& members, std::vector<Rank> all)
        : ranks(std::move(all)), slice(members, ranks) {}

    std::vector<Rank> ranks;
    RankSlice slice;
  };
  // ReportKnown of each, for the usual case: all are new to it, and it is part of no group. Without
  // their lag, which is NoteLag's. REQUIRES: CanShare.
  void ReportShared(const Reporters& reporters, Known& known, absl::Time now,
                    std::vector<FailedTensor>& failed);
  bool CanShare(const Reporters& reporters, const Known& known) const;
  // So many more can be pending, whatever completes meanwhile.
  bool HasRoomFor(int64_t tensors) const;
  // How long after the first rank's report the pending tensor is reported now.
  // REQUIRES: it is pending.
  static absl::Duration DelayOf(const Known& known, absl::Time now);
  // The ranks have come so late with so many tensors.
  void NoteLag(absl::Span<const Rank> ranks, absl::Duration delay, int64_t tensors);

  // Tensors that ranks report by the same slots in one message, round after round: as long as all
  // do so, who is in is counted once for all of them. Whatever concerns one of them alone ends
  // that, and only that. REQUIRES of both: nobody has joined.
  // They are pending as these slots, with nothing wrong, and none of the ranks is in yet: now it
  // is. How late they came, and with how many tensors, is noted. nullopt, and nothing has happened,
  // in every other case. Else how many tensors that were.
  std::optional<int64_t> ReportBundle(const Known& first, const Slots& slots,
                                      const Reporters& reporters, absl::Time now);
  std::optional<int64_t> ReportBundle(const Known& first, const Slots& slots, Rank rank,
                                      absl::Time now);
  // They become pending so, with nobody in: a ReportBundle has to follow. False, and nothing has
  // happened: one of them is pending, part of a group, or wrong in some other way.
  bool BeginBundle(absl::Span<Known* const> tensors, const Slots& slots, Rank first_rank,
                   absl::Time now);

  // `rank` has submitted something that cannot be used: the tensor fails on all ranks.
  void Reject(Rank rank, const TensorSpec& spec, const absl::Status& why,
              std::vector<FailedTensor>& failed);

  // `rank` no longer waits: CANCELLED for all, also for `rank`. Nothing if it was answered already.
  void Withdraw(Rank rank, absl::string_view name, absl::string_view reason,
                std::vector<FailedTensor>& failed);

  // `rank` has no more data, until EndJoin: nobody has joined any more.
  void Join(Rank rank, std::vector<FailedTensor>& failed);
  void EndJoin();

  // Tensors that are pending since `now - age` or earlier fail with DEADLINE_EXCEEDED.
  void FailOlderThan(absl::Time now, absl::Duration age, std::vector<FailedTensor>& failed);

  // Moves out what every member is in for, in order of completion: the order that all execute.
  std::vector<ReadyTensor> TakeReady();
  // Takes the memory of tensors that have been planned, for the next ones.
  void Reuse(std::vector<ReadyTensor> planned);
  bool has_ready() const { return !ready_.empty(); }

  // Pending since `now - age` or earlier, oldest first, at most `limit`.
  std::vector<PendingTensor> Stalled(absl::Time now, absl::Duration age, size_t limit) const;
  // Like Stalled, but each tensor once: those that were not returned (or counted) before. `count`:
  // how many there are, also beyond `limit`.
  std::vector<PendingTensor> NewlyStalled(absl::Time now, absl::Duration age, size_t limit,
                                          int64_t& count);
  int64_t stalled() const {
    return entries_.stalled();
  }  // counted by NewlyStalled and still pending
  bool Has(absl::string_view name) const { return entries_.Find(name) != nullptr; }
  std::optional<PendingTensor> Find(absl::string_view name) const;
  std::optional<PendingTensor> Oldest() const;
  // When NewlyStalled or FailOlderThan finds something. InfiniteFuture: never, as things are.
  absl::Time NextStall(absl::Duration warning, absl::Duration abort) const {
    return entries_.NextStall(warning, abort);
  }

  void ForgetAll();  // nobody is told
  // The same in parts (Remains::Free). Nothing else is called then.
  int64_t Free(int64_t most);

  // coordd was not running for `gap`: what is pending is that much younger.
  void Forgive(absl::Duration gap) { entries_.Forgive(gap); }

  int64_t pending() const { return entries_.size(); }
  int64_t tombstones() const { return tombstones_.size(); }
  const MemberList& members() const { return members_; }

  absl::Status CheckConsistency() const;  // its invariants; O(everything)

 private:
  using Entry = ReadinessEntry;
  using Bundle = ReadinessBundle;
  struct TensorGroup {
    int32_t size = 0;               // tensors it must have
    int32_t complete = 0;           // tensors that all members are in for
    std::vector<Entry*> tensors;    // in order of first reports
    std::vector<int32_t> named_by;  // by member: how many of its tensors that rank has named
    int64_t cost_bytes = 0;
  };
  using TensorGroups = absl::flat_hash_map<std::string, TensorGroup>;

  Entry* AddEntry(Rank rank, const TensorSpec& spec, absl::Time now);
  TensorGroup& GetOrAddGroup(const std::string& name, int32_t size);
  absl::Status CheckGroup(const TensorSpec& spec) const;
  bool HasRoom() const;
  // What the first rank that is missing has submitted, and the first that is in has not, as the end
  // of a sentence; empty: nothing. Programs that call in different orders wait like that.
  std::string WaitsInstead(const Entry& entry, const PendingTensor& pending) const;
  int64_t state_bytes() const {
    return entries_.state_bytes() + group_bytes_ + tombstones_.state_bytes();
  }
  // What this table has in use goes into the totals; at the end of all that may change it.
  void Account();
  size_t Index(Rank rank) const { return static_cast<size_t>(members_.IndexOf(rank)); }
  bool IsComplete(const Entry& entry) const;
  // Set if the tensor asks for data of a rank that has joined.
  std::optional<TensorFault> AsksJoined(const Entry& entry) const;
  // After a report or a join: fails the tensor or completes it, if either is due.
  void Settle(Entry& entry, std::vector<FailedTensor>& failed);
  void MarkIn(Entry& entry, Rank rank, int64_t bytes, absl::Time now);
  void Complete(Entry& entry);
  void MoveToReady(Entry& entry);
  // `rank`'s report of `spec` brings the tensor down, and the group that either side put it in.
  void FailReport(Rank rank, const TensorSpec& spec, const TensorFault& fault,
                  std::vector<FailedTensor>& failed);
  // What ranks that are not in `told` hear when they name the tensor.
  RankSet Owed(const RankSet& told) const { return told.Complement().Without(joined_); }
  void FailEntry(Entry& entry, const TensorFault& fault, std::vector<FailedTensor>& failed);
  // `debtor`: a rank whose debt is not what the group's size says.
  struct Debtor {
    Rank rank = kNobody;
    GroupDebt owed;
  };
  void FailGroup(TensorGroups::iterator it, absl::string_view culprit, const TensorFault& fault,
                 std::vector<FailedTensor>& failed, const Debtor& debtor);
  // The entry by itself, of which something is to be said alone: its bundle ends, if it is part of
  // one.
  Entry& Alone(Entry& entry) {
    if (entry.bundle != nullptr) bundles_.Dissolve(*entry.bundle);
    return entry;
  }
  Bundle* BundleOf(const Known& first, const Slots& slots) const;
  int64_t CountIn(Bundle& bundle, absl::Span<const Rank> ranks, absl::Time now);
  PendingTensor Describe(const Entry& entry) const;
  absl::Status CheckGroupConsistency(absl::string_view name, const TensorGroup& group) const;

  const ProcessSetId process_set_;
  const MemberList members_;
  const ReadinessBounds bounds_;
  ReadinessTotals& totals_;
  RankSet joined_;
  ReadinessEntries entries_;
  TensorBundles bundles_;
  TensorGroups groups_;
  int64_t group_bytes_ = 0;  // what the groups take, about
  Tombstones tombstones_;
  std::vector<ReadyTensor> ready_;
  struct {
    int64_t pending = 0, tombstones = 0, state_bytes = 0, stalled = 0;
  } counted_;  // what the totals have of this table
};

}  // namespace coordd
