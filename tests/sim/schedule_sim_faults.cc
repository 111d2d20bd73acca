// coordd dies and is started again, and streams break: what has been sent arrives up to a point
// that differs from rank to rank.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/job_record.h"
#include "tests/server/builders.h"
#include "tests/sim/schedule_sim.h"

namespace coordd {

absl::Status ScheduleSim::StartCoordd() {
  COORDD_ASSIGN_OR_RETURN(RestoredState restored, ParseRecords({"c0ffee", Epoch{++epoch_}, disk_}));
  for (auto& [name, record] : restored.jobs) {
    if (bug_ == PlantedBug::kGenerationsStartAnew) record.set_generation(0);
    if (bug_ == PlantedBug::kPlansBeforeAllAreBack && record.members_size() > 1)
      record.mutable_members()->RemoveLast();
  }
  Effects effects;
  coordd_ = std::make_unique<CoordinatorState>(options_, restored, now_, effects);
  history_.SawRestart();
  return TakeCoordd(std::move(effects));
}

absl::Status ScheduleSim::Crash() {
  ++crashes_;
  coordd_.reset();
  for (RankState& rank : ranks_) {
    rank.to_coordd.clear();
    // What was under way arrives, or a part of it.
    const uint64_t arrives = random_.Below(rank.from_coordd.size() + 1);
    while (rank.from_coordd.size() > arrives) {
      rank.lost.push_front(std::move(rank.from_coordd.back()));
      rank.from_coordd.pop_back();
    }
    rank.ends = rank.ends || ToInt(rank.session) != 0;
    rank.session = SessionId{};
  }
  return absl::OkStatus();
}

bool ScheduleSim::all_are_back() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) {
    return rank.worker == nullptr || rank.worker->attached();
  });
}

// Of a rank that is coming back: another time. Of one that is back it would be the end.
absl::Status ScheduleSim::BreakStream(int32_t rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  if (coordd_ == nullptr || ToInt(state.session) == 0) return absl::OkStatus();
  v1::ServerState described;
  coordd_->Describe("train", now_, &described);
  const bool resuming = described.jobs_size() == 1 && described.jobs(0).generation() > 0 &&
                        described.jobs(0).phase() == v1::JOB_PHASE_GATHERING;
  if (!resuming || state.worker == nullptr) return absl::OkStatus();
  ++breaks_;
  const SessionId session = std::exchange(state.session, SessionId{});
  const bool has_said_all = state.to_coordd.empty();
  state.to_coordd.clear();
  state.ends = true;
  // coordd sees it now, or only after the rank has come again; but not after all are back, when it
  // would be a loss.
  if (!has_said_all && random_.Below(2) == 0) return absl::OkStatus();
  const Inbound ended(SessionEnded{session, "broken"});
  history_.Saw(ended);
  Effects effects;
  coordd_->Step(ended, now_, effects);
  return TakeCoordd(std::move(effects));
}

absl::Status ScheduleSim::EndStream(int32_t rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  state.ends = false;
  if (state.worker == nullptr) {
    SendJoin(rank);  // it has not heard of a generation: it joins again
    return absl::OkStatus();
  }
  return Turn(rank, StreamEnded{absl::UnavailableError("the stream broke"), state.stream});
}

v1::Join ScheduleSim::JoinFor(int32_t rank) const {
  const int32_t size = static_cast<int32_t>(ranks_.size());
  v1::Join join = JoinOf(absl::StrCat("w", rank));
  join.set_launcher_rank(rank);
  join.set_executes_schedules(true);
  join.mutable_limits()->set_min_workers(size);
  join.mutable_limits()->set_max_workers(size);
  return join;
}

void ScheduleSim::SendJoin(int32_t rank) {
  OpenStream(rank, 0);
  RankState& state = ranks_[static_cast<size_t>(rank)];
  if (ToInt(state.session) == 0) return;
  v1::WorkerMessage message;
  *message.mutable_join() = JoinFor(rank);
  state.to_coordd.push_back(std::move(message));
}

void ScheduleSim::OpenStream(int32_t rank, int64_t stream) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  state.to_coordd.clear();
  state.from_coordd.clear();
  state.sequence = 0;
  state.stream = stream;
  state.session = SessionId{};
  state.ends = coordd_ == nullptr;  // nobody listens
  if (state.ends) return;
  state.session = SessionId{++last_session_};
  rank_of_[state.session] = rank;
}

// The disk is quick: what dies with coordd is what it had not asked for.
absl::Status ScheduleSim::Store(const Effects& effects) {
  for (const Persist& persist : effects.persist) {
    for (const StateWrite& write : persist.writes) {
      if (write.value.has_value()) {
        disk_[write.key] = *write.value;
      } else {
        disk_.erase(write.key);
      }
    }
    if (persist.generation == Generation{0}) continue;
    const Inbound persisted(Persisted{persist.job, persist.generation});
    history_.Saw(persisted);
    Effects more;
    coordd_->Step(persisted, now_, more);
    COORDD_RETURN_IF_ERROR(TakeCoordd(std::move(more)));
  }
  return absl::OkStatus();
}

// What an earlier coordd had said comes after all, on the stream to the new one.
absl::Status ScheduleSim::StrayMessage(int32_t rank) {
  RankState& state = ranks_[static_cast<size_t>(rank)];
  v1::CoordinatorMessage stray = std::move(state.lost.front());
  state.lost.pop_front();
  if (bug_ == PlantedBug::kNoFencing) {
    // As a rank that does not look at the epoch would take it.
    stray.set_epoch(epoch_);
    stray.set_sequence(state.from_coordd.empty() ? state.sequence + 1
                                                 : state.from_coordd.front().sequence());
    for (v1::CoordinatorMessage& later : state.from_coordd)
      later.set_sequence(later.sequence() + 1);
    ++state.sequence;
  }
  return Turn(rank, CoordinatorSaid{std::move(stray), state.stream});
}

}  // namespace coordd
