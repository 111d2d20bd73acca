// Tensors that ranks report alike: who is in is counted once for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/protocol/types.h"
#include "server/generation/readiness_entries.h"
#include "server/members/member_list.h"

namespace coordd {

// Of what a message reports.
struct ReportedSlots {
  int64_t first = 0;
  absl::string_view bits;
};

// PURE. Not thread-safe. A tensor is in one bundle at most, and of a bundle all tensors are pending
// and have the same ranks in; whatever concerns one of them alone ends the bundle, and only that.
class TensorBundles {
 public:
  // Both outlive it.
  TensorBundles(const MemberList& members, ReadinessEntries& entries)
      : members_(members), entries_(entries) {}
  TensorBundles(const TensorBundles&) = delete;
  TensorBundles& operator=(const TensorBundles&) = delete;

  // They become pending as one, with nobody in. False, and nothing has happened: they are too few,
  // one of them is pending, or part of a group.
  bool Begin(absl::Span<KnownTensor* const> tensors, const ReportedSlots& slots, Rank first_rank,
             absl::Time now);
  // The one that has this first tensor and was reported by these slots. nullptr: there is none.
  ReadinessBundle* Find(const KnownTensor& first, const ReportedSlots& slots) const;
  // Into its tensors: what they have not counted one by one.
  static void SumUp(const ReadinessBundle& bundle);
  // Its tensors are gone, each by itself.
  void Drop(ReadinessBundle& bundle);
  // Its tensors stay, each for itself.
  void Dissolve(ReadinessBundle& bundle);
  void DissolveAll();
  void Clear();  // its tensors are forgotten

  bool empty() const { return bundles_.empty(); }
  absl::Status CheckConsistency() const;  // its invariants; O(everything)

 private:
  std::unique_ptr<ReadinessBundle> New(const ReportedSlots& slots);

  const MemberList& members_;
  ReadinessEntries& entries_;
  std::vector<std::unique_ptr<ReadinessBundle>> bundles_;
  std::vector<std::unique_ptr<ReadinessBundle>> spare_;  // a round's memory is the next one's
};

}  // namespace coordd
