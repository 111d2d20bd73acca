#include "server/generation/join_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"

namespace coordd {

JoinState::Outcome JoinState::Join(Rank rank, absl::Time now, std::vector<FailedTensor>& failed) {
  if (const std::optional<TensorFault> fault = tombstones_.Take(rank, kJoinName, "", 0)) {
    failed.push_back({ProcessSetId{0}, kJoinName, *fault, {rank}});
    return Outcome::kRefused;
  }
  heard_ = now;
  if (!joined_.Insert(rank)) {
    const TensorFault again{absl::AlreadyExistsError(absl::StrCat(kJoinName, ": rank ", ToInt(rank),
                                                                  " has joined already")),
                            rank};
    Fail(again, failed);
    failed.push_back({ProcessSetId{0}, kJoinName, again, {rank}});  // two joins, two answers
    return Outcome::kFailed;
  }
  if (!joined_.full()) return Outcome::kJoined;
  joined_ = RankSet(all_);
  return Outcome::kComplete;
}

bool JoinState::Withdraw(Rank rank, absl::string_view reason, std::vector<FailedTensor>& failed) {
  if (!joined_.Contains(rank)) return false;
  const PendingTensor pending = Describe();
  Fail({absl::CancelledError(absl::StrCat(kJoinName, ": rank ", ToInt(rank), " withdrew it",
                                          reason.empty() ? "" : ": ", reason, "; not joined by ",
                                          RanksString(pending.missing, pending.missing_count))),
        rank},
       failed);
  return true;
}

bool JoinState::FailSilence(absl::Time now, absl::Duration age, std::vector<FailedTensor>& failed) {
  if (joined_.empty() || heard_ + age > now) return false;
  const PendingTensor pending = Describe();
  const Rank blamed = pending.missing_count == 1 ? pending.missing.front() : kNobody;
  Fail({absl::DeadlineExceededError(absl::StrCat(
            kJoinName, ": joined by ", RanksString(pending.ready, pending.ready_count),
            ", and nothing came from ", RanksString(pending.missing, pending.missing_count),
            " within ", DurationText(age))),
        blamed},
       failed);
  return true;
}

std::optional<PendingTensor> JoinState::NewlySilent(absl::Time now, absl::Duration age) {
  if (joined_.empty() || warned_ == heard_ || heard_ + age > now) return std::nullopt;
  warned_ = heard_;
  return Describe();
}

absl::Time JoinState::NextSilence(absl::Duration warning, absl::Duration abort) const {
  if (joined_.empty()) return absl::InfiniteFuture();
  return heard_ + (warned_ == heard_ ? abort : std::min(warning, abort));
}

void JoinState::Fail(const TensorFault& fault, std::vector<FailedTensor>& failed) {
  failed.push_back({ProcessSetId{0}, kJoinName, fault, joined_.Ranks()});
  tombstones_.AddTensor(kJoinName, fault, joined_.Complement());
  joined_ = RankSet(all_);
}

PendingTensor JoinState::Describe() const {
  const RankSet missing = joined_.Complement();
  return {.process_set = ProcessSetId{0},
          .name = kJoinName,
          .since = heard_,
          .ready = joined_.FirstRanks(ReadinessTable::kMaxNamedRanks),
          .missing = missing.FirstRanks(ReadinessTable::kMaxNamedRanks),
          .missing_count = missing.size(),
          .ready_count = joined_.size()};
}

}  // namespace coordd
