// The tensors that are pending in one process set, by name and by age; their memory serves the next
// ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/tensor_spec.h"
#include "common/protocol/types.h"
#include "server/generation/kept_names.h"
#include "server/members/member_list.h"
#include "server/members/rank_set.h"

namespace coordd {

struct ReadinessBundle;
struct ReadinessEntry;

// A tensor that ranks may report without its spec.
struct KnownTensor {
  TensorSpec spec;                    // but for the first dimension, where ranks may differ in it
  int64_t bytes = 0;                  // of one rank; the mean where they differ
  int64_t slot = 0;                   // what ranks call it
  ReadinessEntry* pending = nullptr;  // the table's: of this spec, if one is
};

struct ReadinessEntry {
  using Ages = std::map<int64_t, ReadinessEntry*>;
  explicit ReadinessEntry(const MemberList& members) : own(members) {}
  const RankSet& in() const;  // who is

  int64_t id = 0;  // order of first reports
  TensorSpec spec;
  Rank first_rank;
  absl::Time first_report;
  RankSet own;                        // who is in, unless it is part of a bundle
  ReadinessBundle* bundle = nullptr;  // that says who is in
  Ages::node_type age;                // its place among the ages, while it has none
  int64_t max_bytes = 0;              // of one rank
  int64_t sum_bytes = 0;              // of all ranks
  int64_t cost_bytes = 0;
  KnownTensor* known = nullptr;  // that points here
};

// Tensors that all ranks have reported by the same slots in one message.
struct ReadinessBundle {
  explicit ReadinessBundle(const MemberList& members) : in(members) {}

  size_t at = 0;  // in its table's list
  int64_t first_slot = 0;
  std::string bits;
  std::vector<ReadinessEntry*> tensors;  // in the order of their slots
  RankSet in;                            // each of them
};

inline const RankSet& ReadinessEntry::in() const { return bundle != nullptr ? bundle->in : own; }

// PURE. Not thread-safe. Each entry is found by its own name and in the order of first reports; an
// entry stays where it is until it is taken out.
class ReadinessEntries {
 public:
  static constexpr int64_t kEntryCostBytes = 256;  // containers, allocations

  // `members` outlives it. `spares`: counts what is kept for those that come next.
  explicit ReadinessEntries(const MemberList& members, KeptNames::Hold spares = {})
      : members_(members), spares_(std::move(spares)) {}
  ReadinessEntries(const ReadinessEntries&) = delete;
  ReadinessEntries& operator=(const ReadinessEntries&) = delete;

  ReadinessEntry* Find(absl::string_view name) const;  // nullptr: none is pending
  // With nobody in. nullptr: one of this name is there.
  ReadinessEntry* Add(Rank rank, const TensorSpec& spec, absl::Time now);
  // It is not pending any more, and no Known points to it. To be kept.
  std::unique_ptr<ReadinessEntry> Take(ReadinessEntry& entry);
  void Keep(std::unique_ptr<ReadinessEntry> spare);
  void Erase(ReadinessEntry& entry) { Keep(Take(entry)); }
  void Clear();
  // Of those that are there, and of what is kept for others, about so many, the oldest first.
  int64_t Free(int64_t most);
  static void Unlink(ReadinessEntry& entry);
  // The memory of this spec is not needed any more. False: nor is any.
  bool Reuse(TensorSpec&& spec);

  const ReadinessEntry::Ages& by_age() const { return by_age_; }
  bool empty() const { return by_age_.empty(); }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }
  int64_t state_bytes() const { return state_bytes_; }  // about

  // Each that is pending since `now - age` or earlier and was not visited before; how many they
  // are.
  int64_t VisitStalled(absl::Time now, absl::Duration age,
                       absl::FunctionRef<void(const ReadinessEntry&)> visit);
  int64_t stalled() const { return stalled_; }  // visited, and still pending
  // When `warning` lets one be visited, or `abort` is over. InfiniteFuture: never, as things are.
  absl::Time NextStall(absl::Duration warning, absl::Duration abort) const;
  // All are that much younger.
  void Forgive(absl::Duration gap);

  absl::Status CheckConsistency() const;  // its invariants; O(everything)

 private:
  std::unique_ptr<ReadinessEntry> New(const TensorSpec& spec);
  static int64_t CostOf(const ReadinessEntry& spare) {
    return kEntryCostBytes + spare.own.size_bytes();
  }

  const MemberList& members_;
  absl::flat_hash_map<absl::string_view, std::unique_ptr<ReadinessEntry>> entries_;
  ReadinessEntry::Ages by_age_;  // by id
  int64_t next_id_ = 0;
  int64_t last_stalled_id_ = -1;  // entries up to this one have been visited
  int64_t stalled_ = 0;
  int64_t state_bytes_ = 0;
  KeptNames::Hold spares_;
  std::vector<std::unique_ptr<ReadinessEntry>> spare_entries_;
  std::vector<TensorSpec> spare_specs_;
};

}  // namespace coordd
