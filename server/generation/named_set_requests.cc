#include "server/generation/named_set_requests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/status_macros.h"
#include "server/generation/process_sets.h"

namespace coordd {
namespace {

constexpr size_t kNamedRanks = 64;  // as of a stalled tensor

absl::Status HasJoined(const ProcessSetProposal& proposal, Rank joined) {
  return absl::FailedPreconditionError(
      absl::StrCat(TitleOf(0, proposal), ": rank ", ToInt(joined),
                   " has joined and takes part in none, expected it before the first member "
                   "joins or after the last one has"));
}

// Of a request for a set of so many: its name and ranks twice, and two sets of bits.
int64_t BytesOf(const ProcessSetProposal& proposal, int64_t members) {
  constexpr int64_t kBytes = 512, kNames = 3;
  return kBytes + kNames * static_cast<int64_t>(proposal.name.size()) +
         static_cast<int64_t>(sizeof(Rank) * proposal.ranks.size()) +
         members * static_cast<int64_t>(sizeof(Rank)) + members / 4;
}

}  // namespace

int64_t NamedSetRequests::Open::bytes() const {
  return BytesOf(proposal, members.size()) + static_cast<int64_t>(sizeof(Rank) * others.size());
}

absl::Status NamedSetRequests::Request(Rank rank, const ProcessSetProposal& proposal,
                                       std::vector<Rank> members, const RankSet& joined,
                                       absl::Time now, std::optional<AgreedRequest>& agreed,
                                       std::vector<FailedRequest>& failed) {
  const std::string& name = proposal.name;
  if (TakeOwed(rank, name, failed)) return absl::OkStatus();
  if (!joined.empty()) {
    const auto without = std::find_if(members.begin(), members.end(),
                                      [&](Rank member) { return joined.Contains(member); });
    if (without != members.end()) {
      failed.push_back({0, {HasJoined(proposal, *without), *without}, {rank}, name});
      return absl::OkStatus();
    }
  }
  auto found = open_.find(name);
  if (found == open_.end()) {
    if (const absl::Status room = CheckRoom(proposal, members.size()); !room.ok()) {
      failed.push_back({0, {room, kNobody}, {rank}, name});
      return absl::OkStatus();
    }
    found = open_.try_emplace(name, proposal, rank, std::move(members), now).first;
    Count(found->second, 1);
  }
  Open& open = found->second;
  if (open.members.Contains(rank) && open.in.Contains(rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", ToInt(rank), " asks for process set ", name, " twice"));
  }
  if (proposal != open.proposal) {
    Differs(rank, proposal, found, failed);
    return absl::OkStatus();
  }
  open.in.Insert(rank);
  if (!open.in.full()) return absl::OkStatus();
  agreed = AgreedRequest{0, open.proposal, open.members.Ranks()};
  Erase(found);
  return absl::OkStatus();
}

void NamedSetRequests::Differs(Rank rank, const ProcessSetProposal& proposal,
                               Requests::iterator found, std::vector<FailedRequest>& failed) {
  Open& open = found->second;
  Fail(found->first, open,
       absl::InvalidArgumentError(absl::StrCat(
           "process set ", found->first, ": rank ", ToInt(rank), " asks for it of ranks ",
           ListString(proposal.ranks), ", rank ", ToInt(open.first_rank), " of ranks ",
           ListString(open.proposal.ranks), FirstDifference(proposal.ranks, open.proposal.ranks))),
       kNobody, failed, rank);
  std::vector<Rank> others;
  for (const Rank other : proposal.ranks)
    if (other != rank && !open.members.Contains(other)) others.push_back(other);
  // Where there is no room they hear nothing, as those who make a request that nobody else makes.
  const int64_t more = static_cast<int64_t>(others.size());
  if (!IsFull(more, more * static_cast<int64_t>(sizeof(Rank)))) {
    Count(open, -1);
    open.others = std::move(others);
    Count(open, 1);
  }
  if (open.is_told()) Erase(found);
}

bool NamedSetRequests::Open::TakeOwed(Rank rank) {
  if (members.Contains(rank)) return owed.Erase(rank);
  const auto place = std::lower_bound(others.begin(), others.end(), rank);
  if (place == others.end() || *place != rank) return false;
  others.erase(place);
  return true;
}

bool NamedSetRequests::TakeOwed(Rank rank, const std::string& name,
                                std::vector<FailedRequest>& failed) {
  const auto found = open_.find(name);
  if (found == open_.end() || !found->second.fault.has_value()) return false;
  Open& open = found->second;
  Count(open, -1);
  const bool was_owed = open.TakeOwed(rank);
  Count(open, 1);
  if (was_owed) failed.push_back({0, *open.fault, {rank}, name});
  // Who has heard of it begins anew.
  if (!was_owed || open.is_told()) Erase(found);
  return was_owed;
}

bool NamedSetRequests::IsFull(int64_t members, int64_t bytes) const {
  return members_ + members > kMaxMembers || !share_.HasRoomFor(bytes);
}

absl::Status NamedSetRequests::CheckRoom(const ProcessSetProposal& proposal, size_t members) {
  const int64_t more = static_cast<int64_t>(members);
  const int64_t bytes = BytesOf(proposal, more);
  // What has failed makes room first. It is not looked for among the others: of thousands.
  if (open_.size() >= kMaxOpen || IsFull(more, bytes)) {
    while (!failed_.empty()) Erase(open_.find(*failed_.begin()));
  }
  if (open_.size() >= kMaxOpen || members_ + more > kMaxMembers) {
    return absl::ResourceExhaustedError(absl::StrCat(
        TitleOf(0, proposal), ": some members have not asked for ", open_.size(), " others of ",
        members_, " members, expected at most ", kMaxOpen, " of ", kMaxMembers));
  }
  if (share_.HasRoomFor(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(TitleOf(0, proposal), ": ", share_.NoRoom("this job")));
}

void NamedSetRequests::Joined(Rank rank, std::vector<FailedRequest>& failed) {
  for (auto it = open_.begin(); it != open_.end();) {
    Open& open = it->second;
    if (open.fault.has_value() || !open.members.Contains(rank)) {
      ++it;
      continue;
    }
    Fail(it->first, open, HasJoined(open.proposal, rank), rank, failed);
    // Who asks while it has joined hears the same, and behind the join all ask anew.
    it = Erase(it);
  }
}

void NamedSetRequests::Withdraw(Rank rank, const std::string& name,
                                std::vector<FailedRequest>& failed) {
  const auto found = open_.find(name);
  if (found == open_.end()) return;
  Open& open = found->second;
  if (open.fault.has_value() || !open.members.Contains(rank) || !open.in.Contains(rank)) return;
  const PendingRequest pending = Describe(open);
  Fail(name, open,
       absl::CancelledError(absl::StrCat(pending.title, ": rank ", ToInt(rank),
                                         " withdrew it; not made by ",
                                         RanksString(pending.missing, pending.missing_count))),
       rank, failed);
}

void NamedSetRequests::FailOlderThan(absl::Time now, absl::Duration age,
                                     std::vector<FailedRequest>& failed) {
  for (auto& [name, open] : open_) {
    if (open.fault.has_value() || open.since + age > now) continue;
    const PendingRequest pending = Describe(open);
    Fail(name, open,
         absl::DeadlineExceededError(absl::StrCat(
             pending.title, ": made by ", RanksString(pending.ready, pending.ready_count),
             ", but not by ", RanksString(pending.missing, pending.missing_count), " within ",
             DurationText(age))),
         pending.missing_count == 1 ? pending.missing.front() : kNobody, failed);
  }
}

void NamedSetRequests::NewlyStalled(absl::Time now, absl::Duration age,
                                    std::vector<PendingRequest>& stalled) {
  for (auto& [name, open] : open_) {
    if (open.fault.has_value() || open.warned || open.since + age > now) continue;
    open.warned = true;
    stalled.push_back(Describe(open));
  }
}

void NamedSetRequests::Stalled(absl::Time now, absl::Duration age,
                               std::vector<PendingRequest>& stalled) const {
  for (const auto& [name, open] : open_) {
    if (open.fault.has_value() || open.since + age > now) continue;
    stalled.push_back(Describe(open));
  }
}

absl::Time NamedSetRequests::NextStall(absl::Duration warning, absl::Duration abort) const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [name, open] : open_) {
    if (open.fault.has_value()) continue;
    next = std::min(next, open.since + (open.warned ? abort : std::min(warning, abort)));
  }
  return next;
}

void NamedSetRequests::Forgive(absl::Duration gap) {
  for (auto& [name, open] : open_) open.since += gap;
}

void NamedSetRequests::Fail(const std::string& name, Open& open, const absl::Status& status,
                            Rank blamed, std::vector<FailedRequest>& failed,
                            std::optional<Rank> also) {
  open.fault = TensorFault{status, blamed};
  failed_.insert(name);
  std::vector<Rank> ranks = open.in.Ranks();
  open.owed = open.in.Complement();
  if (also.has_value()) {
    ranks.push_back(*also);
    if (open.members.Contains(*also)) open.owed.Erase(*also);
  }
  failed.push_back({0, *open.fault, std::move(ranks), name});
}

PendingRequest NamedSetRequests::Describe(const Open& open) {
  const RankSet missing = open.in.Complement();
  return {.title = TitleOf(0, open.proposal),
          .since = open.since,
          .ready = open.in.FirstRanks(kNamedRanks),
          .missing = missing.FirstRanks(kNamedRanks),
          .ready_count = open.in.size(),
          .missing_count = missing.size()};
}

void NamedSetRequests::Count(const Open& open, int64_t times) {
  members_ += times * open.ranks();
  share_.Set(bytes_ += times * open.bytes());
}

NamedSetRequests::Requests::iterator NamedSetRequests::Erase(Requests::iterator request) {
  Count(request->second, -1);
  if (request->second.fault.has_value()) failed_.erase(request->first);
  return open_.erase(request);
}

absl::Status NamedSetRequests::CheckConsistency() const {
  int64_t members = 0, bytes = 0;
  size_t failed = 0;
  for (const auto& [name, open] : open_) {
    members += open.ranks();
    bytes += open.bytes();
    failed += failed_.contains(name) && open.fault.has_value() ? 1 : 0;
    const bool waits = !open.fault.has_value() && !open.in.empty() && !open.in.full();
    const bool is_owed = open.fault.has_value() && !open.is_told();
    if (name != open.proposal.name || !open.in.CountsAreRight() || (!waits && !is_owed))
      return absl::InternalError(absl::StrCat("the request for process set ", name, " is wrong"));
  }
  const bool is_right = members == members_ && bytes == bytes_ && failed == failed_.size();
  if (is_right && open_.size() <= kMaxOpen) return absl::OkStatus();
  return absl::InternalError("the requests for process sets with a name are counted wrong");
}

}  // namespace coordd
