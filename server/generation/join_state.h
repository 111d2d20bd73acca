// Which ranks have joined: they have no more data, and wait for the others to run out of theirs.
#pragma once

#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/tensor_spec.h"
#include "common/protocol/types.h"
#include "server/generation/readiness_table.h"
#include "server/generation/tombstones.h"
#include "server/members/rank_set.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe. Each join is answered once, like a tensor: by the
// last rank's, or by a failure that ends it for all.
class JoinState {
 public:
  enum class Outcome {
    kRefused,  // see `failed`: only this rank hears of it
    kFailed,   // see `failed`: nobody has joined any more
    kJoined,
    kComplete,  // it was the last: nobody has joined any more
  };

  explicit JoinState(const MemberList& all)  // which outlives it
      : all_(all), joined_(all), tombstones_(all) {}

  // kFailed with ALREADY_EXISTS: it has joined already. kRefused: with the fault of a join that
  // failed before `rank` made its own.
  Outcome Join(Rank rank, absl::Time now, std::vector<FailedTensor>& failed);
  // `rank` no longer waits: CANCELLED for all. False: it had not joined.
  bool Withdraw(Rank rank, absl::string_view reason, std::vector<FailedTensor>& failed);

  // A rank that has not joined has submitted something: those who have need not worry.
  void Heard(absl::Time now) { heard_ = now; }
  // Ranks have joined, and no other has submitted anything since `now - age`: DEADLINE_EXCEEDED for
  // all. False: nothing of that kind.
  bool FailSilence(absl::Time now, absl::Duration age, std::vector<FailedTensor>& failed);
  // The silence that FailSilence would fail at this age, told but once for each silence.
  std::optional<PendingTensor> NewlySilent(absl::Time now, absl::Duration age);
  absl::Time NextSilence(absl::Duration warning, absl::Duration abort) const;
  void Forgive(absl::Duration gap) { heard_ += gap; }

  bool Contains(Rank rank) const { return joined_.Contains(rank); }
  const RankSet& joined() const { return joined_; }

 private:
  void Fail(const TensorFault& fault, std::vector<FailedTensor>& failed);
  PendingTensor Describe() const;

  const MemberList& all_;
  RankSet joined_;
  Tombstones tombstones_;
  absl::Time heard_ = absl::InfinitePast();
  absl::Time warned_ = absl::InfinitePast();  // heard_ at the time of the last warning
};

}  // namespace coordd
