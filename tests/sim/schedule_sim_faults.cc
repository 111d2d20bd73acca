// coordd dies, and streams break.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/server/support/builders.h"
#include "tests/sim/schedule_sim.h"

namespace coordd {

CoorddModel::Hooks ScheduleSim::CoorddHooks(Log log) {
  return {
      .said = [this](int32_t rank, v1::CoordinatorMessage& message,
                     bool current) { return OnSaid(rank, message, current); },
      .did =
          [this](const Outgoing& out) {
            const auto* close = std::get_if<CloseSession>(&out);
            if (close == nullptr ||
                coordd_.stream(coordd_.worker_of(close->session)).session != close->session)
              return absl::OkStatus();
            return Wrong("a session is closed: ", close->status.ToString());
          },
      .found =
          [this](RestoredState& found) {
            for (auto& [name, record] : found.jobs) {
              if (bug_ == PlantedBug::kGenerationsStartAnew) record.set_generation(0);
              if (bug_ == PlantedBug::kPlansBeforeAllAreBack && record.members_size() > 1)
                record.mutable_members()->RemoveLast();
            }
          },
      .log = std::move(log),
  };
}

bool ScheduleSim::all_are_back() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) {
    return rank.worker == nullptr || rank.worker->attached();
  });
}

// Of a rank that is coming back: another time. Of one that is back it would be the end.
absl::Status ScheduleSim::BreakStream(int32_t rank) {
  SimStream& stream = coordd_.stream(rank);
  if (!coordd_.alive() || ToInt(stream.session) == 0) return absl::OkStatus();
  const v1::JobState job = coordd_.Job();
  const bool resuming = job.generation() > 0 && job.phase() == v1::JOB_PHASE_GATHERING;
  if (!resuming || ranks_[static_cast<size_t>(rank)].worker == nullptr) return absl::OkStatus();
  ++breaks_;
  const SessionId session = stream.session;
  const bool has_said_all = stream.to_coordd.empty();
  coordd_.Break(rank);
  // coordd sees it now, or only after the rank has come again; but not after all are back, when it
  // would be a loss.
  if (!has_said_all && random_.Below(2) == 0) return absl::OkStatus();
  return coordd_.Step(SessionEnded{session, "broken"});
}

absl::Status ScheduleSim::EndStream(int32_t rank) {
  SimStream& stream = coordd_.stream(rank);
  stream.ends = false;
  if (ranks_[static_cast<size_t>(rank)].worker == nullptr) {
    coordd_.SendJoin(rank, JoinFor(rank));  // it has not heard of a generation: it joins again
    return absl::OkStatus();
  }
  return Turn(rank, StreamEnded{absl::UnavailableError("the stream broke"), stream.number});
}

v1::Join ScheduleSim::JoinFor(int32_t rank) const {
  const int32_t size = static_cast<int32_t>(ranks_.size());
  v1::Join join = JoinOf(absl::StrCat("w", rank));
  join.set_launcher_rank(rank);
  join.set_executes_schedules(true);
  join.set_knows_slots(true);
  join.set_schedules_devices(true);
  join.mutable_limits()->set_min_workers(size);
  join.mutable_limits()->set_max_workers(size);
  return join;
}

// What an earlier coordd had said comes after all, on the stream to the new one.
absl::Status ScheduleSim::StrayMessage(int32_t rank) {
  SimStream& stream = coordd_.stream(rank);
  v1::CoordinatorMessage stray = std::move(stream.lost.front());
  stream.lost.pop_front();
  if (bug_ == PlantedBug::kNoFencing) {
    // As a rank that does not look at the epoch would take it.
    stray.set_epoch(coordd_.epoch());
    stray.set_sequence(stream.from_coordd.empty() ? stream.sequence + 1
                                                  : stream.from_coordd.front().sequence());
    for (v1::CoordinatorMessage& later : stream.from_coordd)
      later.set_sequence(later.sequence() + 1);
    ++stream.sequence;
  }
  return Turn(rank, CoordinatorSaid{std::move(stray), stream.number});
}

}  // namespace coordd
