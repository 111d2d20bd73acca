#include "worker/host/checking_backend.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/interfaces/collective_args.h"

namespace coordd {
namespace {

std::string KeyOf(int32_t rank) { return absl::StrCat("check-results/", rank); }

absl::Status NotAlike(int32_t rank, absl::string_view found, absl::string_view expected) {
  return absl::FailedPreconditionError(absl::StrCat("rank ", rank, " ", found, ", expected ",
                                                    expected,
                                                    " (COORDD_CHECK_RESULTS equal on all ranks)"));
}

}  // namespace

CheckingBackend::CheckingBackend(std::unique_ptr<CollectiveBackend> checked,
                                 CheckingOptions options)
    : options_(std::move(options)), checked_(std::move(checked)) {}

CheckingBackend::~CheckingBackend() {
  checked_.reset();  // lets go of all buffers
  for (auto& [id, lane] : lanes_) {
    for (Batch& batch : lane.queue) std::move(batch.done)(CollectivesAborted());
  }
}

absl::Status CheckingBackend::Connect(const GroupLayout& layout, Store& store,
                                      absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(checked_->Connect(layout, store, deadline));
  rank_ = ToInt(layout.self());
  groups_[ProcessSetId{0}] = {rank_, layout.size()};
  // Each looks at the next one: if two differ, one of them sees it.
  const std::string own = absl::StrCat(options_.tolerance);
  COORDD_RETURN_IF_ERROR(store.Set(KeyOf(rank_), own, deadline));
  const int32_t next = (rank_ + 1) % layout.size();
  const absl::StatusOr<std::string> said = store.Get(KeyOf(next), deadline);
  if (absl::IsDeadlineExceeded(said.status())) return NotAlike(next, "does not check results", own);
  COORDD_RETURN_IF_ERROR(said.status());
  return *said == own ? absl::OkStatus()
                      : NotAlike(next, absl::StrCat("checks results with ", *said), own);
}

absl::Status CheckingBackend::DefineGroup(ProcessSetId group, absl::Span<const Rank> ranks) {
  COORDD_RETURN_IF_ERROR(checked_->DefineGroup(group, ranks));
  const auto self = std::find(ranks.begin(), ranks.end(), Rank{rank_}) - ranks.begin();
  groups_[group] = {static_cast<int32_t>(self), static_cast<int32_t>(ranks.size())};
  return absl::OkStatus();
}

void CheckingBackend::EndGroup(ProcessSetId group) {
  lanes_.erase(LaneId{ToInt(group)});
  groups_.erase(group);
  checked_->EndGroup(group);
}

void CheckingBackend::EndLane(LaneId lane) {
  lanes_.erase(lane);
  checked_->EndLane(lane);
}

absl::Status CheckingBackend::Launch(CollectiveArgs args, Done done) {
  const auto group = groups_.find(args.group);
  if (group == groups_.end()) return checked_->Launch(std::move(args), std::move(done));  // says so
  COORDD_RETURN_IF_ERROR(ValidateArgs(args, Rank{group->second.self}, group->second.size));
  Lane& lane = lanes_[args.lane];
  if (lane.queue.size() >= kMaxQueued) {
    return absl::ResourceExhaustedError(
        absl::StrCat("lane ", ToInt(args.lane), " has ", lane.queue.size(), " batches waiting"));
  }
  lane.queue.push_back({std::move(args), std::move(done), group->second});
  return absl::OkStatus();
}

bool CheckingBackend::Progress() {
  bool moved = checked_->Progress();
  Finished finished;
  for (auto& [id, lane] : lanes_) moved |= Advance(lane, finished);
  // Last, because a `done` may Launch.
  for (auto& [done, status] : finished) std::move(done)(std::move(status));
  return moved;
}

bool CheckingBackend::Advance(Lane& lane, Finished& finished) {
  bool moved = false;
  while (!lane.queue.empty() && !lane.running) {
    moved = true;
    if (!lane.begun) {
      Begin(lane);
      continue;
    }
    Batch& batch = lane.queue.front();
    if (lane.status.ok() && lane.check.has_value()) {
      if (std::optional<CollectiveArgs> next = lane.check->Next()) {
        next->lane = batch.args.lane;
        next->sequence = batch.args.sequence;
        next->group = batch.args.group;
        Run(lane, *std::move(next));
        continue;
      }
    }
    // Also when somebody has given up while it was written.
    if (lane.check.has_value() && !lane.check->mismatch().empty())
      lane.status = Wrong(batch, *lane.check);
    finished.emplace_back(std::move(batch.done), std::move(lane.status));
    lane.check.reset();
    lane.queue.pop_front();
    lane.begun = false;
  }
  return moved;
}

void CheckingBackend::Begin(Lane& lane) {
  const Batch& batch = lane.queue.front();
  lane.begun = true;
  if (ResultCheck::Covers(batch.args.kind))
    lane.check.emplace(batch.args, batch.group.self, batch.group.size, options_.tolerance);
  Run(lane, batch.args);
}

void CheckingBackend::Run(Lane& lane, CollectiveArgs args) {
  lane.running = true;
  const absl::Status launched = checked_->Launch(std::move(args), [&lane](absl::Status status) {
    lane.running = false;
    lane.status = std::move(status);
  });
  if (launched.ok()) return;
  lane.running = false;
  lane.status = launched;
}

absl::Status CheckingBackend::Wrong(const Batch& batch, const ResultCheck& check) const {
  const std::string path =
      absl::StrCat(options_.directory, "/coordd-mismatch-rank", rank_, "-", getpid(), "-lane",
                   ToInt(batch.args.lane), "-", batch.args.sequence, ".tsv");
  std::ofstream file(path);
  file << "# rank " << rank_ << ": " << check.mismatch() << "\n# element\tgot\texpected\n"
       << check.dump();
  file.close();
  const std::string where = file ? absl::StrCat("both vectors are in ", path)
                                 : absl::StrCat("both vectors could not be written to ", path);
  return absl::DataLossError(
      absl::StrCat("rank ", rank_, ": ", check.mismatch(), " by the reference; ", where));
}

}  // namespace coordd
