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

}  // namespace

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
    members_ += static_cast<int64_t>(members.size());
    found = open_.try_emplace(name, proposal, rank, std::move(members), now).first;
  }
  Open& open = found->second;
  if (open.members.Contains(rank) && open.in.Contains(rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", ToInt(rank), " asks for process set ", name, " twice"));
  }
  if (proposal != open.proposal) {
    Fail(
        name, open,
        absl::InvalidArgumentError(absl::StrCat(
            "process set ", name, ": rank ", ToInt(rank), " asks for it of ranks ",
            ListString(proposal.ranks), ", rank ", ToInt(open.first_rank), " of ranks ",
            ListString(open.proposal.ranks), FirstDifference(proposal.ranks, open.proposal.ranks))),
        kNobody, failed, rank);
    for (const Rank other : proposal.ranks)
      if (other != rank && !(open.members.Contains(other) && open.in.Contains(other)))
        open.owed.insert(other);
    if (open.owed.empty()) Erase(found);
    return absl::OkStatus();
  }
  open.in.Insert(rank);
  if (!open.in.full()) return absl::OkStatus();
  agreed = AgreedRequest{0, open.proposal, open.members.Ranks()};
  Erase(found);
  return absl::OkStatus();
}

bool NamedSetRequests::TakeOwed(Rank rank, const std::string& name,
                                std::vector<FailedRequest>& failed) {
  const auto found = open_.find(name);
  if (found == open_.end() || !found->second.fault.has_value()) return false;
  Open& open = found->second;
  const bool was_owed = open.owed.erase(rank) > 0;
  if (was_owed) failed.push_back({0, *open.fault, {rank}, name});
  // Who has heard of it begins anew.
  if (!was_owed || open.owed.empty()) Erase(found);
  return was_owed;
}

absl::Status NamedSetRequests::CheckRoom(const ProcessSetProposal& proposal, size_t members) {
  auto is_full = [&] {
    return open_.size() >= kMaxOpen || members_ + static_cast<int64_t>(members) > kMaxMembers;
  };
  if (is_full()) {  // what has failed makes room first
    for (auto it = open_.begin(); it != open_.end();)
      it = it->second.fault.has_value() ? Erase(it) : std::next(it);
  }
  if (!is_full()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      TitleOf(0, proposal), ": some members have not asked for ", open_.size(), " others of ",
      members_, " members, expected at most ", kMaxOpen, " of ", kMaxMembers));
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
  std::vector<Rank> ranks = open.in.Ranks();
  for (const Rank missing : open.in.Complement().Ranks()) open.owed.insert(missing);
  if (also.has_value()) {
    ranks.push_back(*also);
    open.owed.erase(*also);
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

NamedSetRequests::Requests::iterator NamedSetRequests::Erase(Requests::iterator request) {
  members_ -= request->second.members.size();
  return open_.erase(request);
}

absl::Status NamedSetRequests::CheckConsistency() const {
  int64_t members = 0;
  for (const auto& [name, open] : open_) {
    members += open.members.size();
    const bool waits = !open.fault.has_value() && !open.in.empty() && !open.in.full();
    const bool is_owed = open.fault.has_value() && !open.owed.empty();
    if (name != open.proposal.name || !open.in.CountsAreRight() || (!waits && !is_owed))
      return absl::InternalError(absl::StrCat("the request for process set ", name, " is wrong"));
  }
  if (members == members_ && open_.size() <= kMaxOpen) return absl::OkStatus();
  return absl::InternalError("the requests for process sets with a name are counted wrong");
}

}  // namespace coordd
