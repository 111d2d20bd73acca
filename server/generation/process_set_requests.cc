#include "server/generation/process_set_requests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/status_macros.h"
#include "server/generation/process_sets.h"

namespace coordd {
namespace {

constexpr size_t kReportedRanks = 64;  // as of a stalled tensor

absl::Status HasJoined(int64_t number, const ProcessSetProposal& proposal, Rank joined) {
  return absl::FailedPreconditionError(absl::StrCat(
      "process set request ", number, " to ", ToString(proposal), ": rank ", ToInt(joined),
      " has joined and takes part in none, expected it before the "
      "first rank joins or after the last one has"));
}

}  // namespace

// Who is in as bits, and of one that has not failed the ranks that it is about.
int64_t ProcessSetRequests::BytesOf(const ProcessSetProposal& proposal) const {
  constexpr int64_t kBytes = 512;
  return kBytes + all_.size() / 8 + static_cast<int64_t>(sizeof(Rank) * proposal.ranks.size());
}

void ProcessSetRequests::Count(Open& open, int64_t bytes) {
  share_.Set(bytes_ += bytes - open.bytes);
  open.bytes = bytes;
}

std::string ToString(const ProcessSetProposal& proposal) {
  return proposal.remove == ProcessSetId{0} ? absl::StrCat("add ", ListString(proposal.ranks))
                                            : absl::StrCat("remove ", ToInt(proposal.remove));
}

std::string TitleOf(int64_t number, const ProcessSetProposal& proposal) {
  if (proposal.name.empty())
    return absl::StrCat("process set request ", number, " to ", ToString(proposal));
  return proposal.adds()
             ? absl::StrCat("process set ", proposal.name, " of ranks ", ListString(proposal.ranks))
             : absl::StrCat("the end of process set ", proposal.name);
}

void ProcessSetRequests::Restore(const std::vector<int64_t>& answered,
                                 const std::map<int64_t, ProcessSetId>& removals, absl::Time now) {
  last_ = answered;
  const auto [least, most] = std::minmax_element(last_.begin(), last_.end());
  // Who is so far behind hears nothing at all of the first ones.
  first_ = std::max(*least, *most - static_cast<int64_t>(kMaxOpen)) + 1;
  for (int64_t& last : last_) last = std::max(last, first_ - 1);
  for (int64_t number = first_; number <= *most; ++number) {
    const absl::Status why = absl::AbortedError(
        absl::StrCat("process set request ", number,
                     ": had failed on other ranks before coordd was started again"));
    Open& open = open_.emplace_back(Open{.proposal = {},
                                         .first_rank = {},
                                         .since = now,
                                         .in = RankSet(all_),
                                         .fault = {},
                                         .told = {}});
    for (int32_t rank = 0; rank < all_.size(); ++rank) {
      if (last_[static_cast<size_t>(rank)] >= number) open.in.Insert(Rank{rank});
    }
    if (const auto removal = removals.find(number); removal != removals.end()) {
      open.proposal.remove = removal->second;
      open.told = open.in.Ranks();
      open.first_rank = open.told.front();
    } else {
      open.fault = TensorFault{why, kNobody};
    }
    Count(open, BytesOf(open.proposal));
  }
  DropAnswered();
}

std::vector<ProcessSetId> ProcessSetRequests::EndedForSome() const {
  std::vector<ProcessSetId> sets;
  for (const Open& open : open_)
    if (!open.told.empty() && !open.fault.has_value()) sets.push_back(open.proposal.remove);
  return sets;
}

absl::Status ProcessSetRequests::Request(Rank rank, int64_t number,
                                         const ProcessSetProposal& proposal, const RankSet& joined,
                                         absl::Time now, std::optional<AgreedRequest>& agreed,
                                         std::vector<FailedRequest>& failed) {
  int64_t& last = last_[static_cast<size_t>(rank.value)];
  if (number != last + 1) {
    return absl::InvalidArgumentError(absl::StrCat("process set request ", number, " of rank ",
                                                   ToInt(rank), " follows its request ", last));
  }
  const bool is_new = number == first_ + static_cast<int64_t>(open_.size());
  if (is_new && open_.size() == kMaxOpen) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", ToInt(rank), " has made ", kMaxOpen,
                     " process set requests more than another rank, expected fewer"));
  }
  last = number;
  const bool has_room = !is_new || share_.HasRoomFor(BytesOf(proposal));
  if (is_new) {
    open_.push_back({.proposal = proposal,
                     .first_rank = rank,
                     .since = now,
                     .in = RankSet(all_),
                     .fault = {},
                     .told = {}});
  }
  Open& open = At(number);
  open.in.Insert(rank);
  if (is_new) Count(open, BytesOf(proposal));
  if (is_new && !joined.empty()) {
    for (Rank other : joined.Ranks()) {
      open.in.Insert(other);
      last_[static_cast<size_t>(other.value)] = number;
    }
    Fail(number, HasJoined(number, proposal, joined.FirstRanks(1).front()),
         joined.FirstRanks(1).front(), failed);
  } else if (!has_room) {
    Fail(number,
         absl::ResourceExhaustedError(
             absl::StrCat(TitleOf(number, proposal), ": ", share_.NoRoom("this job"))),
         kNobody, failed);
  } else if (open.fault.has_value()) {
    failed.push_back({number, *open.fault, {rank}});
  } else if (proposal != open.proposal) {
    Fail(number,
         absl::InvalidArgumentError(absl::StrCat(
             "process set request ", number, ": rank ", ToInt(rank), " asks to ",
             ToString(proposal), ", rank ", ToInt(open.first_rank), " to ", ToString(open.proposal),
             FirstDifference(proposal.ranks, open.proposal.ranks))),
         kNobody, failed);
  } else if (open.in.full()) {
    agreed = AgreedRequest{number, std::move(open.proposal), {}, std::move(open.told)};
  }
  DropAnswered();
  return absl::OkStatus();
}

void ProcessSetRequests::Joined(Rank rank, std::vector<FailedRequest>& failed) {
  int64_t& last = last_[static_cast<size_t>(rank.value)];
  const int64_t newest = first_ + static_cast<int64_t>(open_.size()) - 1;
  while (last < newest) {
    Open& open = At(++last);
    open.in.Insert(rank);
    if (open.fault.has_value()) {
      failed.push_back({last, *open.fault, {rank}});
    } else {
      Fail(last, HasJoined(last, open.proposal, rank), rank, failed);
    }
  }
  DropAnswered();
  named_.Joined(rank, failed);
}

absl::Status ProcessSetRequests::Withdraw(Rank rank, int64_t number,
                                          std::vector<FailedRequest>& failed) {
  const int64_t last = last_[static_cast<size_t>(rank.value)];
  if (number < 1 || number > last) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", ToInt(rank),
                                                   " withdraws process set request ", number,
                                                   ", its last one was ", last));
  }
  if (number < first_ || At(number).fault.has_value()) return absl::OkStatus();
  const PendingRequest pending = Describe(number);
  Fail(number,
       absl::CancelledError(absl::StrCat(pending.title, ": rank ", ToInt(rank),
                                         " withdrew it; not made by ",
                                         RanksString(pending.missing, pending.missing_count))),
       rank, failed);
  return absl::OkStatus();
}

void ProcessSetRequests::FailOlderThan(absl::Time now, absl::Duration age,
                                       std::vector<FailedRequest>& failed) {
  for (size_t i = 0; i < open_.size(); ++i) {
    if (open_[i].fault.has_value() || open_[i].since + age > now) continue;
    const int64_t number = first_ + static_cast<int64_t>(i);
    const PendingRequest pending = Describe(number);
    Fail(number,
         absl::DeadlineExceededError(absl::StrCat(
             pending.title, ": made by ", RanksString(pending.ready, pending.ready_count),
             ", but not by ", RanksString(pending.missing, pending.missing_count), " within ",
             DurationText(age))),
         pending.missing_count == 1 ? pending.missing.front() : kNobody, failed);
  }
  named_.FailOlderThan(now, age, failed);
}

std::vector<PendingRequest> ProcessSetRequests::NewlyStalled(absl::Time now, absl::Duration age) {
  std::vector<PendingRequest> stalled;
  for (size_t i = 0; i < open_.size(); ++i) {
    Open& open = open_[i];
    if (open.fault.has_value() || open.warned || open.since + age > now) continue;
    open.warned = true;
    stalled.push_back(Describe(first_ + static_cast<int64_t>(i)));
  }
  named_.NewlyStalled(now, age, stalled);
  return stalled;
}

std::vector<PendingRequest> ProcessSetRequests::Stalled(absl::Time now, absl::Duration age) const {
  std::vector<PendingRequest> stalled;
  for (size_t i = 0; i < open_.size(); ++i) {
    if (open_[i].fault.has_value() || open_[i].since + age > now) continue;
    stalled.push_back(Describe(first_ + static_cast<int64_t>(i)));
  }
  named_.Stalled(now, age, stalled);
  return stalled;
}

absl::Time ProcessSetRequests::NextStall(absl::Duration warning, absl::Duration abort) const {
  absl::Time next = named_.NextStall(warning, abort);
  for (const Open& open : open_) {
    if (open.fault.has_value()) continue;
    next = std::min(next, open.since + (open.warned ? abort : std::min(warning, abort)));
  }
  return next;
}

void ProcessSetRequests::Forgive(absl::Duration gap) {
  for (Open& open : open_) open.since += gap;
  named_.Forgive(gap);
}

void ProcessSetRequests::Fail(int64_t number, absl::Status status, Rank blamed,
                              std::vector<FailedRequest>& failed) {
  Open& open = At(number);
  open.fault = TensorFault{std::move(status), blamed};
  open.proposal = {};
  Count(open, BytesOf(open.proposal));
  std::vector<Rank> ranks = open.in.Ranks();
  std::erase_if(ranks, [&open](Rank rank) {
    return std::find(open.told.begin(), open.told.end(), rank) != open.told.end();
  });
  failed.push_back({number, *open.fault, std::move(ranks)});
}

PendingRequest ProcessSetRequests::Describe(int64_t number) const {
  const Open& open = open_[static_cast<size_t>(number - first_)];
  const RankSet missing = open.in.Complement();
  return {.title = TitleOf(number, open.proposal),
          .since = open.since,
          .ready = open.in.FirstRanks(kReportedRanks),
          .missing = missing.FirstRanks(kReportedRanks),
          .ready_count = open.in.size(),
          .missing_count = missing.size()};
}

void ProcessSetRequests::DropAnswered() {
  while (!open_.empty() && open_.front().in.full()) {
    Count(open_.front(), 0);
    open_.pop_front();
    ++first_;
  }
}

absl::Status ProcessSetRequests::CheckConsistency() const {
  COORDD_RETURN_IF_ERROR(named_.CheckConsistency());
  int64_t bytes = 0;
  for (size_t i = 0; i < open_.size(); ++i) {
    const Open& open = open_[i];
    const int64_t number = first_ + static_cast<int64_t>(i);
    bytes += BytesOf(open.proposal);
    if (open.in.empty() || open.in.full() || !open.in.CountsAreRight()) {
      return absl::InternalError(absl::StrCat("request ", number, " miscounts its ranks"));
    }
    for (int32_t rank = 0; rank < all_.size(); ++rank) {
      if (open.in.Contains(Rank{rank}) != (last_[static_cast<size_t>(rank)] >= number)) {
        return absl::InternalError(absl::StrCat("request ", number, " has the wrong ranks"));
      }
    }
  }
  if (bytes != bytes_) return absl::InternalError("requests for process sets are miscounted");
  return absl::OkStatus();
}

}  // namespace coordd
