// What is negotiated in one process set, on a lane of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/readiness_table.h"
#include "server/generation/schedule_detector.h"
#include "server/generation/slot_cache.h"
#include "server/members/member_list.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe. One for each process set of a generation: which
// of its members have submitted what, by which slots they may name it, what repeats in it, and how
// its batches are numbered.
//
// All of its members read its plans in one order, so that a slot and a number mean the same to
// each.
class SetNegotiation {
 public:
  struct Options {
    ReadinessBounds bounds;
    int64_t schedule_steps = 0;  // that a pattern must last
    int64_t slots = 0;           // of a set that is no pair; 0: a member does not know them
  };
  // Reports and failures in a pair name set 0. `sessions`: of the members. `totals` outlives it.
  SetNegotiation(ProcessSetId id, bool is_pair, const MemberList& members,
                 std::vector<SessionId> sessions, const Options& options, ReadinessTotals& totals);

  ProcessSetId id() const { return id_; }
  bool is_pair() const { return is_pair_; }
  const MemberList& members() const { return table_.members(); }
  const std::vector<SessionId>& sessions() const { return sessions_; }
  ReadinessTable& table() { return table_; }
  const ReadinessTable& table() const { return table_; }

  // --- reports by slots ---
  int64_t slots_given() const { return slots_.given(); }
  // `rank` has heard of slots up to `known`. False: it cannot have, or it is no member.
  bool Heard(Rank rank, int64_t known);
  bool HaveHeard(const std::vector<Rank>& ranks, int64_t known) const;  // as before: all of them

  // What is reported of all its tensors at once, by a rank or by several: for how many tensors and
  // ranks that counted. nullopt, and nothing has happened: there is more to do than to count.
  // REQUIRES: all are members, and have heard of these slots; nobody has joined.
  std::optional<int64_t> CountAlike(const v1::CachedTensors& cached, Rank who, absl::Time now);
  std::optional<int64_t> CountAlike(const v1::CachedTensors& cached,
                                    const ReadinessTable::Reporters& who, absl::Time now);
  // The same, one tensor after the other. REQUIRES: likewise.
  std::optional<int64_t> CountShared(const v1::CachedTensors& cached,
                                     const ReadinessTable::Reporters& who, absl::Time now,
                                     std::vector<FailedTensor>& failed);
  struct Counted {
    int64_t tensors = 0;
    int64_t unknown = 0;  // the slot that was never given, and the last one looked at; 0: none
  };
  // By one rank. What is more than counting is left to `other`; all is, unless it `may_count`.
  // REQUIRES: as CountAlike, if it may.
  Counted Count(const v1::CachedTensors& cached, Rank who, bool may_count, absl::Time now,
                absl::FunctionRef<void(ReadinessTable::Known&)> other,
                std::vector<FailedTensor>& failed);

  // --- plans ---
  // Adds the tensors of one batch; the bytes that they take in the message, about. `by_slots`: if
  // each has one, so that no name need be read; `unknown`: those that have none and could have one.
  int64_t FillBatch(const std::vector<ReadyTensor>& ready, const std::vector<size_t>& indices,
                    bool by_slots, std::vector<const ReadyTensor*>& unknown, v1::FusedBatch* batch);
  // Gives them slots, as many as the message takes.
  void Bind(const std::vector<const ReadyTensor*>& unknown, v1::CollectivePlan* plan);
  int64_t NextSequence() { return ++sequence_; }
  void RestoreSequence(int64_t last) { sequence_ = last; }
  int64_t TakeForgotten();  // slots that had to make room since the last time
  // Whether it has to be announced before its first plan: a pair, once.
  bool TakeAnnouncement() { return is_pair_ && !std::exchange(announced_, true); }

  // --- what repeats ---
  // Tensors in host memory and tensors on devices have schedules of their own.
  ScheduleDetector& detector(bool on_devices) { return on_devices ? on_devices_ : on_host_; }
  void ResetDetectors();

  // Remains::Free, of what is pending; what is kept of names besides is freed with the set.
  int64_t Free(int64_t most) { return table_.Free(most); }
  int64_t names() const {
    return static_cast<int64_t>(slots_.size() + on_host_.known_tensors() +
                                on_devices_.known_tensors());
  }

  // When NegotiatedSets looks for stalls in it next. InfiniteFuture: nothing is pending.
  absl::Time deadline() const { return deadline_; }
  void set_deadline(absl::Time deadline) { deadline_ = deadline; }

 private:
  template <typename Reporters>
  std::optional<int64_t> CountBundle(const v1::CachedTensors& cached, const Reporters& who,
                                     absl::Time now);
  std::vector<ReadinessTable::Known*> Shared(const v1::CachedTensors& cached,
                                             const ReadinessTable::Reporters& who);

  const ProcessSetId id_;
  const bool is_pair_;
  const bool has_slots_;
  const std::vector<SessionId> sessions_;
  ReadinessTable table_;
  SlotCache slots_;
  int64_t slots_forgotten_ = 0;  // of which TakeForgotten has told
  ScheduleDetector on_host_, on_devices_;
  int64_t sequence_ = 0;  // of the last batch planned
  bool announced_ = false;
  absl::Time deadline_ = absl::InfiniteFuture();
};

}  // namespace coordd
