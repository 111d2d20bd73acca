#include "server/job/resume_state.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace coordd {

ResumeState::ResumeState(const v1::JobRecord& record, absl::Time deadline,
                         ResumeBeginning beginning, std::shared_ptr<const FoundSets> found)
    : record_(record),
      found_(found != nullptr ? std::move(found) : std::make_shared<const FoundSets>()),
      beginning_(std::move(beginning)),
      deadline_(deadline),
      members_(static_cast<size_t>(record.members_size())) {
  for (int32_t rank = 0; rank < size(); ++rank) {
    by_worker_id_.emplace(record.members(rank).worker_id(), Rank{rank});
    if (!record.members(rank).launch().empty())
      by_launch_.emplace(record.members(rank).launch(), Rank{rank});
  }
}

std::optional<Rank> ResumeState::Find(absl::string_view worker_id) const {
  const auto found = by_worker_id_.find(worker_id);
  if (found == by_worker_id_.end()) return std::nullopt;
  return found->second;
}

std::optional<Rank> ResumeState::FindLaunch(absl::string_view launch) const {
  const auto found = by_launch_.find(launch);
  if (found == by_launch_.end()) return std::nullopt;
  return found->second;
}

absl::StatusOr<Rank> ResumeState::Check(const v1::Join& join, absl::string_view cluster_id,
                                        Epoch epoch) const {
  const std::optional<Rank> rank = Find(join.worker_id());
  COORDD_RETURN_IF_ERROR(CheckMember(join, cluster_id, epoch, record_, rank));
  return *rank;
}

absl::Status ResumeState::CheckMember(const v1::Join& join, absl::string_view cluster_id,
                                      Epoch epoch, const v1::JobRecord& record,
                                      std::optional<Rank> rank) {
  const v1::Resume& resume = join.resume();
  auto refused = [&](const auto&... why) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", join.worker_id(), " cannot resume: ", why...));
  };
  if (resume.cluster_id() != cluster_id)
    return refused("it was in cluster ", resume.cluster_id(), ", this coordd has the state of ",
                   cluster_id);
  if (resume.epoch() > ToInt(epoch))
    return refused("it has been in epoch ", resume.epoch(),
                   ", this coordd's state is older: epoch ", ToInt(epoch));
  const bool waits = resume.generation() < record.generation() && rank.has_value() &&
                     record.on_failure() > v1::ON_FAILURE_END &&
                     record.members(rank->value).pid() == join.pid();
  if (waits) return absl::OkStatus();
  if (resume.generation() != record.generation())
    return refused("it is in generation ", resume.generation(),
                   ", the last one that this coordd knows is ", record.generation());
  if (!rank.has_value() || ToInt(*rank) != resume.rank())
    return refused("it is not rank ", resume.rank(), " of generation ", record.generation());
  return absl::OkStatus();
}

absl::Status ResumeState::CheckMayReturn(Rank rank) const {
  const auto found = lost_.find(ToInt(rank));
  if (found == lost_.end()) return absl::OkStatus();
  const v1::Departure& departure = found->second;
  if (departure.cause() != v1::DEPARTURE_CAUSE_EVICTED &&
      departure.cause() != v1::DEPARTURE_CAUSE_PROTOCOL_ERROR)
    return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("worker ", member(rank).worker_id(),
                                                    " cannot come back: it ", departure.detail()));
}

void ResumeState::Came(Rank rank, SessionId session, std::optional<int64_t> position) {
  Member& member = Changed(rank);
  COORDD_CHECK(!member.session.has_value());
  member = Member();
  member.session = session;
  member.report.position = position.value_or(0);
  if (position.has_value()) return;
  member.is_new = true;
  member.reported = true;
  ++reported_;
}

void ResumeState::Gone(Rank rank) {
  Member& member = Changed(rank);
  if (member.reported) --reported_;
  heard_.Release(member.report.received);
  extra_bytes_ -= BeyondUsual(member.report.bytes);
  member = Member();
}

void ResumeState::NoteLost(const v1::Departure& departure, const std::string& reason) {
  EndMerge();
  if (!over_.has_value()) over_ = reason;
  lost_.try_emplace(departure.rank(), departure);
}

void ResumeState::Left(Rank rank, const v1::Departure& departure, const std::string& reason) {
  COORDD_CHECK(!At(rank).session.has_value());
  lost_[ToInt(rank)] = departure;
  if (!over_.has_value()) over_ = reason;
}

const v1::Departure* ResumeState::left(Rank rank) const {
  const auto found = lost_.find(ToInt(rank));
  const bool left = found != lost_.end() && found->second.cause() == v1::DEPARTURE_CAUSE_DRAINED;
  return left ? &found->second : nullptr;
}

absl::Status ResumeState::Report(Rank rank, const v1::ResumeReport& part) {
  Member& member = At(rank);
  member.bytes += static_cast<int64_t>(part.ByteSizeLong());
  if (member.reported || member.bytes > kMaxReportBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a ResumeReport of ", member.bytes,
                                                   " bytes, expected one of at most ",
                                                   kMaxReportBytes, ", once"));
  }
  const int64_t before = BeyondUsual(member.report.bytes);
  COORDD_RETURN_IF_ERROR(member.report.Add(part, heard_));
  extra_bytes_ += BeyondUsual(member.report.bytes) - before;
  if (part.more()) return absl::OkStatus();
  member.reported = true;
  ++reported_;
  const v1::ResumeReport& report = member.report.rest;
  if (report.over().empty()) return absl::OkStatus();  // then nobody is lost
  if (!over_.has_value()) over_ = report.over();
  for (const v1::Departure& departure : report.departures()) {
    if (departure.rank() >= 0 && departure.rank() < size())
      lost_.try_emplace(departure.rank(), departure);
  }
  return absl::OkStatus();
}

bool ResumeState::complete() const {
  if (reported_ == size()) return true;
  // Each who comes asks, and mostly nobody is lost: ten thousand must not look at each other.
  if (reported_ + static_cast<int64_t>(lost_.size()) < size()) return false;
  const std::vector<Rank> missing = Missing();
  const bool all_left = lost_.size() == members_.size();
  return (reported_ > 0 || all_left) &&
         std::all_of(missing.begin(), missing.end(), [this](Rank rank) {
           return lost_.contains(ToInt(rank)) && !At(rank).session.has_value();
         });
}

std::vector<v1::Departure> ResumeState::Lost() const {
  std::vector<v1::Departure> lost;
  for (const auto& [rank, departure] : lost_)
    if (!At(Rank{rank}).reported) lost.push_back(departure);
  return lost;
}

std::optional<SessionId> ResumeState::session_of(Rank rank) const { return At(rank).session; }

int32_t ResumeState::back() const {
  int32_t count = 0;
  for (const Member& member : members_) count += member.session.has_value() ? 1 : 0;
  return count;
}

std::vector<Rank> ResumeState::Missing() const {
  std::vector<Rank> missing;
  for (int32_t rank = 0; rank < size(); ++rank)
    if (!At(Rank{rank}).reported) missing.push_back(Rank{rank});
  return missing;
}

std::optional<absl::StatusOr<ResumedGeneration>> ResumeState::Merge(int64_t entries) {
  COORDD_CHECK(reported_ == size());
  if (merge_ == nullptr) {
    std::vector<const MemberReport*> reports;
    reports.reserve(members_.size());
    for (const Member& member : members_) reports.push_back(&member.report);
    merge_ = std::make_unique<ReportMerge>(std::move(reports), heard_, found_->parts());
  }
  return merge_->Continue(entries);
}

std::unique_ptr<ReportMerge> ResumeState::TakeEnded() {
  if (ended_.empty()) return nullptr;
  std::unique_ptr<ReportMerge> merge = std::move(ended_.back());
  ended_.pop_back();
  return merge;
}

int64_t ResumeState::Free(int64_t most) {
  int64_t left = most;
  EndMerge();
  for (; left > 0 && !ended_.empty(); --left) {
    left -= ended_.back()->Free(left);
    if (left > 0) ended_.pop_back();
  }
  for (; left > 0 && !members_.empty(); --left) {
    left -= members_.back().report.Free(left);
    if (left > 0) members_.pop_back();
  }
  return most - (left - heard_.Free(std::max<int64_t>(left, 0)));
}

}  // namespace coordd
