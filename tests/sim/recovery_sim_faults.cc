// What happens to the workers and to coordd, and how they come back.
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "tests/server/support/builders.h"
#include "tests/sim/recovery_sim.h"

namespace coordd {
namespace {

// After the end of a partition: coordd has missed the worker by then, or never will.
constexpr absl::Duration kMissedFor = absl::Minutes(1);

}  // namespace

CoorddModel::Hooks RecoverySim::CoorddHooks(Log log) {
  return {
      .said = [this](int32_t w, v1::CoordinatorMessage& message,
                     bool current) { return OnSaid(w, message, current); },
      .did = [this](const Outgoing& out) { return OnDid(out); },
      .job_ended = [this] { store_.OnJobEnded(); },
      .found =
          [this](RestoredState& found) {
            if (options_.bug == RecoveryBug::kPlanIsNotStored) {
              for (auto& [name, record] : found.jobs) record.clear_repairs();
            }
            if (options_.bug == RecoveryBug::kSetsNotStored) {
              for (auto& [name, record] : found.jobs) record.clear_process_sets();
            }
            if (options_.bug == RecoveryBug::kDrainNotStored) found.drains.clear();
          },
      .log = std::move(log),
      .answers_early = options_.bug == RecoveryBug::kAnsweredBeforeStored,
  };
}

absl::Status RecoverySim::Fault(bool& happened) {
  happened = true;
  const bool running = members_.contains(1);
  if (running && kills_left_ > 0 && random_.Below(150) == 0) return Kill();
  if (running && changes_left_ > 0 && random_.Below(100) == 0) return AskForChange();
  if (running && newcomers_left_ > 0 && random_.Below(100) == 0) Come();
  if (running && drains_left_ > 0 && random_.Below(100) == 0) return Dismiss(/*evict=*/false);
  if (running && evictions_left_ > 0 && random_.Below(150) == 0) return Dismiss(/*evict=*/true);
  if (running && cuts_left_ > 0 && random_.Below(150) == 0) Cut();
  // What it has just stored it may not have announced.
  const uint64_t often = coordd_.has_stored_unsaid() ? 4 : 200;
  if (coordd_.alive() && crashes_left_ > 0 && random_.Below(often) == 0) {
    --crashes_left_;
    coordd_.Crash();
    store_.OnCrash();
    return absl::OkStatus();
  }
  if (coordd_.alive() && running && dozes_left_ > 0 && random_.Below(150) == 0) Sleep();
  if (running && partitions_left_ > 0 && random_.Below(150) == 0) Partition();
  if (running && pauses_left_ > 0 && random_.Below(150) == 0) Pause();
  if (coordd_.alive() && running && relays_left_ > 0 && random_.Below(150) == 0) LoseRelay();
  happened = false;
  return absl::OkStatus();
}

absl::Status RecoverySim::Kill() {
  std::vector<int32_t> alive;
  for (int32_t w = 0; w < count(); ++w)
    if (workers_[static_cast<size_t>(w)].alive) alive.push_back(w);
  if (alive.size() < 2) return absl::OkStatus();
  --kills_left_;
  const int32_t w = alive[random_.Below(alive.size())];
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  const bool may_say_so = worker.state != nullptr && !worker.leaves && GetsTurns(worker);
  if (may_say_so && random_.Below(3) == 0) {  // it ends by an error of its program
    worker.leaves = worker.fails = true;
    ++failed_;
    COORDD_RETURN_IF_ERROR(Turn(w, LeaveRequested{.failure = "ValueError: bad batch"}));
    if (!worker.alive) return absl::OkStatus();
  }
  // Part of what it has sent may not have left the machine.
  auto& sent = coordd_.stream(w).to_coordd;
  while (!sent.empty() && random_.Below(2) == 0) sent.pop_back();
  auto arrives = std::move(sent);
  End(w);
  if (ToInt(coordd_.stream(w).session) != 0) arrives.push_back(std::nullopt);
  coordd_.stream(w).to_coordd = std::move(arrives);
  return absl::OkStatus();
}

// Its process has ended, and what it has not sent.
void RecoverySim::End(int32_t w) {
  SimStream& stream = coordd_.stream(w);
  workers_[static_cast<size_t>(w)].alive = false;
  store_.OnGone(w);
  stream.from_coordd.clear();
  stream.to_coordd.clear();
  if (ToInt(stream.session) != 0) stream.to_coordd.push_back(std::nullopt);
}

// Rank 0 of the newest generation, wherever the others are; where workers come, one that says so
// at its next commit.
absl::Status RecoverySim::AskForChange() {
  for (const auto& [w, rank] : members_.rbegin()->second) {
    WorkerModel& worker = workers_[static_cast<size_t>(w)];
    const bool is_there =
        worker.alive && worker.state != nullptr && worker.generation == members_.rbegin()->first;
    if (are_elastic() && is_there && worker.phase != Phase::kDone && random_.Below(2) == 0) {
      --changes_left_;
      worker.wants_change = true;
      return absl::OkStatus();
    }
    if (are_elastic() || rank != 0 || !is_there) continue;
    --changes_left_;
    worker.wants_to_end = worker.generation;
    return Turn(w, MembersMayChange{Generation{worker.generation}});
  }
  return absl::OkStatus();
}

// A rank of the newest generation; sometimes its own process asks for it.
absl::Status RecoverySim::Dismiss(bool evict) {
  std::vector<std::pair<int32_t, int32_t>> staying;  // worker, rank
  for (const auto& [w, rank] : members_.rbegin()->second) {
    const WorkerModel& worker = workers_[static_cast<size_t>(w)];
    if (worker.alive && !worker.is_to_leave && !worker.leaves) staying.emplace_back(w, rank);
  }
  if (staying.size() < 2 || !coordd_.alive()) return absl::OkStatus();
  const auto [w, rank] = staying[random_.Below(staying.size())];
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  --(evict ? evictions_left_ : drains_left_);
  worker.may_be_evicted = true;
  constexpr int64_t kGraceMs[] = {20, 1000, 30000};
  const absl::Duration grace = absl::Milliseconds(kGraceMs[random_.Below(3)]);
  if (!evict && worker.state != nullptr && random_.Below(3) == 0)
    return Turn(w, DrainAsked{coordd_.now() + grace, "SIGTERM"});
  DismissCall call{CallId{++last_call_}, {}};
  call.request.set_action(evict ? v1::DISMISS_ACTION_EVICT : v1::DISMISS_ACTION_DRAIN);
  call.request.set_rank(rank);
  call.request.set_force(true);
  call.request.set_grace_seconds(absl::ToDoubleSeconds(grace));
  if (!evict) drain_calls_[call.call] = w;
  return coordd_.Step(call);
}

// Between two who both go on: one of them has to be parted with, and nobody else.
void RecoverySim::Cut() {
  std::vector<int32_t> alive;
  for (int32_t w = 0; w < count(); ++w)
    if (workers_[static_cast<size_t>(w)].alive) alive.push_back(w);
  if (alive.size() < 2) return;
  --cuts_left_;
  const size_t first = random_.Below(alive.size());
  const size_t second = (first + 1 + random_.Below(alive.size() - 1)) % alive.size();
  const int32_t from = alive[first], to = alive[second];
  cut_.emplace(from, to);
  if (random_.Below(2) == 0) cut_.emplace(to, from);
  for (int32_t end : {from, to}) workers_[static_cast<size_t>(end)].may_be_evicted = true;
}

void RecoverySim::Sleep() {
  --dozes_left_;
  coordd_.Sleep([this](int32_t w) { return workers_[static_cast<size_t>(w)].alive; });
}

// What it reduces with the others goes on.
void RecoverySim::Partition() {
  const int32_t w = static_cast<int32_t>(random_.Below(workers_.size()));
  const WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (!worker.alive || worker.state == nullptr || coordd_.is_cut(w)) return;
  --partitions_left_;
  const uint64_t which = random_.Below(3);
  coordd_.Cut(w, which != 0, which != 1);
}

// It gets no processor, or its clock stands still and then jumps. If coordd misses it, it hears of
// that when it goes on.
void RecoverySim::Pause() {
  const int32_t w = static_cast<int32_t>(random_.Below(workers_.size()));
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (!GetsTurns(worker) || worker.state == nullptr) return;
  --pauses_left_;
  constexpr int64_t kPauseS[] = {3, 8, 15};
  worker.pauses_until = coordd_.now() + absl::Seconds(kPauseS[random_.Below(3)]);
  worker.cut_until = worker.pauses_until + kMissedFor;
}

void RecoverySim::LoseRelay() {
  --relays_left_;
  coordd_.LoseStreams(
      [this](int32_t w) { return workers_[static_cast<size_t>(w)].alive && random_.Below(3) > 0; });
}

void RecoverySim::MendSomething() {
  for (int32_t w = 0; w < count(); ++w) {
    if (!coordd_.is_cut(w) || random_.Below(5) != 0) continue;
    coordd_.Mend(w);
    workers_[static_cast<size_t>(w)].cut_until = coordd_.now() + kMissedFor;
  }
}

// When one may be mended, if there is any.
absl::Time RecoverySim::NextMend() const {
  for (int32_t w = 0; w < count(); ++w)
    if (coordd_.is_cut(w)) return coordd_.now() + absl::Seconds(5);
  return absl::InfiniteFuture();
}

StoreSim::Who RecoverySim::StoreUsers() const {
  const auto at = [this](int32_t w) -> const WorkerModel& {
    return workers_[static_cast<size_t>(w)];
  };
  return {.calls =
              [this, at](int32_t w) {
                return GetsTurns(at(w)) && at(w).state != nullptr && !at(w).leaves;
              },
          .stays = [this, at](int32_t w) { return at(w).alive && !at(w).leaves && !MayBeGone(w); }};
}

bool RecoverySim::MayBeGone(int32_t w) const {
  const WorkerModel& worker = workers_[static_cast<size_t>(w)];
  return worker.may_be_evicted || coordd_.is_cut(w) || coordd_.now() <= worker.cut_until;
}

absl::Status RecoverySim::OnClosed(const CloseSession& close) {
  const int32_t w = coordd_.worker_of(close.session);
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  SimStream& stream = coordd_.stream(w);
  const bool current = stream.session == close.session;
  const bool may_suspend = options_.dozes > 0 || options_.partitions > 0 || options_.pauses > 0 ||
                           options_.relays > 0 || options_.stale;
  if (IsOutside(worker) && absl::IsUnavailable(close.status)) {
    if (current) coordd_.Break(w);  // it joins again
    return absl::OkStatus();
  }
  if (absl::IsUnavailable(close.status) && may_suspend) {
    if (suspended_at_ != coordd_.now()) ++suspended_;
    suspended_at_ = coordd_.now();
    if (current) coordd_.Break(w);
    return absl::OkStatus();
  }
  if (!current) return absl::OkStatus();
  const bool said_goodbye = worker.leaves && close.status.ok();
  if (!worker.alive || said_goodbye || coordd_.is_cut(w) || IsPaused(worker)) {
    coordd_.Close(w, close.status);
    return absl::OkStatus();
  }
  if (MayBeGone(w)) {
    ++evicted_;
    // Who comes back too late hears why its generation ended, perhaps that another one was parted
    // with.
    if (absl::StartsWith(close.status.message(),
                         "this worker was evicted: nothing comes over the network"))
      ++parted_;
    if (parted_ > cuts()) return Wrong("more are evicted than links are cut");
    End(w);
    return absl::OkStatus();
  }
  return Wrong("the session of worker ", w, " is closed: ", close.status.ToString());
}

v1::Join RecoverySim::JoinFor(int32_t w) const {
  v1::Join join = JoinOf(absl::StrCat("w", w));
  join.set_launcher_rank(w);
  join.set_executes_schedules(true);
  join.set_knows_slots(true);
  join.set_schedules_devices(true);
  join.set_drains(true);
  join.mutable_asking_for();  // it asks again, until coordd has heard of what has ended
  join.set_on_failure(v1::ON_FAILURE_CONTINUE);
  join.mutable_limits()->set_min_workers(1);
  join.mutable_limits()->set_max_workers(count());
  return join;
}

absl::Status RecoverySim::EndStream(int32_t w) {
  SimStream& stream = coordd_.stream(w);
  stream.ends = false;
  if (workers_[static_cast<size_t>(w)].state == nullptr) {
    coordd_.SendJoin(w, JoinFor(w));  // it has not heard of a generation: it joins again
    return absl::OkStatus();
  }
  const auto closed = std::exchange(stream.closed, std::nullopt);
  return Turn(
      w, StreamEnded{closed.value_or(absl::UnavailableError("the stream broke")), stream.number});
}

}  // namespace coordd
