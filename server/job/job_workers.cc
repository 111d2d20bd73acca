#include "server/job/job_workers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {

void JobWorker::NoteHeartbeat(const v1::Heartbeat& told, SharedWords& shared, absl::Time now) {
  const double seconds = absl::ToDoubleSeconds(now - heartbeat_at);
  if (heartbeat_at != absl::InfinitePast() && seconds > 0) {
    const double bytes =
        static_cast<double>(told.bytes_reduced()) - static_cast<double>(progress.bytes_reduced);
    bytes_per_second = std::max(0.0, bytes / seconds);
  }
  progress = ProgressOf(told, progress);
  gpu_health = told.gpu_health();
  heartbeat_before = heartbeat_at;
  heartbeat_at = now;
  if (told.has_device_use()) device_use = shared.device_use.Keep(told.device_use());
  if (told.has_host_edges()) host_edges = shared.host_edges.Keep(told.host_edges());
}

void JobWorker::Enter(Generation of, const Place& its, absl::Time now) {
  place = its;
  generation = of;
  previous_rank = -1;
  report.Clear();
  its_sets = {};
  device_use.reset();
  host_edges.reset();
  stack_asked = false;
  stack.clear();
  last_heard = now;  // its lease starts here
}

void JobWorker::AwaitNext() {
  previous = generation;
  previous_rank = ToInt(place.rank);
  generation = Generation{0};
}

std::string DeviceOf(const JobWorker& worker) {
  const std::string& uuid =
      worker.device_use != nullptr ? worker.device_use->device().uuid() : worker.gpu_health.uuid();
  return absl::StrCat(uuid, uuid.empty() ? "" : ", ", "host ", worker.join.host().hostname());
}

std::string Who(const JobWorker& worker) {
  const std::string where =
      absl::StrCat(" (host ", worker.join.host().hostname(), ", pid ", worker.join.pid(), ")");
  return worker.generation == Generation{0}
             ? absl::StrCat("worker ", worker.join.worker_id(), where)
             : absl::StrCat("rank ", ToInt(worker.place.rank), where);
}

namespace {

// It is here, in admission and in what it is compared with.
int64_t CostOf(const v1::Join& join) {
  return 2 * BeyondUsual(static_cast<int64_t>(join.SpaceUsedLong()));
}

// Up to what is usual, of one that waits: a third is here, and as much each in admission, and in
// the maps and rooms of allocations (measured: 2.1 to 7.4 KB for Joins of 0.8 to 2.5 KB).
int64_t DoorCostOf(const v1::Join& join) {
  return 3 * std::min(static_cast<int64_t>(join.SpaceUsedLong()), kUsualWordBytes);
}

template <typename Message>
int64_t SpaceOf(const std::shared_ptr<const Message>& told) {
  return SharedWord<Message>::IsAlone(told) ? static_cast<int64_t>(told->SpaceUsedLong()) : 0;
}

int64_t ReportSpace(const JobWorker& worker) {
  return static_cast<int64_t>(worker.report.SpaceUsedLong()) + worker.saying.space() +
         (worker.its_sets.IsAlone() ? worker.its_sets.space : 0);
}

}  // namespace

absl::Status NoRoomFor(absl::string_view what, int64_t bytes, const BudgetShare& words) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " takes ", bytes, " bytes, and what the workers of its owner's jobs say ",
                   "beyond ", kUsualWordBytes >> 10, " KiB each may take ", words.limit() >> 20,
                   " MiB (a quarter of --max-bytes-per-owner)"));
}

absl::Status JobWorkers::HasRoomFor(const v1::Join& join) const {
  if (words_.HasRoomFor(CostOf(join))) return absl::OkStatus();
  return NoRoomFor("this Join", static_cast<int64_t>(join.SpaceUsedLong()), words_);
}

absl::Status JobWorkers::MayWait(const v1::Join& join) const {
  const int64_t bytes = DoorCostOf(join);
  if (joins_.HasRoomFor(bytes)) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "this worker takes ", bytes, " bytes while it waits, and the workers of its owner's jobs ",
      "that wait for a generation may take ", joins_.limit() >> 10, " KiB together (",
      kWaitingWorkerBytes >> 10, " KiB for each of --max-workers-per-job, or half of ",
      "--max-bytes-per-owner if that is more)"));
}

void JobWorkers::Recount(JobWorker& worker) {
  const int64_t door = worker.IsMember() ? 0 : DoorCostOf(worker.join);
  joins_.Set(door_bytes_ += door - worker.door_bytes);
  worker.door_bytes = door;
  const int64_t use = SpaceOf(worker.device_use) + SpaceOf(worker.host_edges);
  const int64_t now = CostOf(worker.join) + BeyondUsual(ReportSpace(worker)) + BeyondUsual(use);
  words_.Set(word_bytes_ += now - worker.word_bytes);
  worker.word_bytes = now;
}

void JobWorkers::CountUse(JobWorker& worker) {
  Recount(worker);
  if (words_.HasRoomFor(0)) return;
  worker.device_use.reset();
  worker.host_edges.reset();
  Recount(worker);
}

void JobWorkers::Enter(SessionId session, Generation of, const Place& its,
                       const ExecutedCounts::Count& executed, absl::Time now) {
  JobWorker& worker = workers_.at(session);
  if (!worker.executed_before_it.has_value()) worker.executed_before_it = executed;
  worker.Enter(of, its, now);
  Recount(worker);
}

absl::Status JobWorkers::TakeReport(JobWorker& worker, bool is_whole) {
  // All that go on have the same ones, as a rule.
  if (is_whole) worker.its_sets = shared_.process_sets.Keep(std::exchange(worker.saying, {}));
  Recount(worker);
  if (words_.HasRoomFor(0)) return absl::OkStatus();
  const int64_t space = ReportSpace(worker);
  worker.report.Clear();
  worker.its_sets = {};
  shared_.process_sets.Forget(std::exchange(worker.saying, {}));
  Recount(worker);
  return NoRoomFor("this RecoveryReport", space, words_);
}

JobWorker& JobWorkers::Add(SessionId session, JobWorker worker) {
  admission_.Add(worker.join);
  JobWorker& added = workers_.emplace(session, std::move(worker)).first->second;
  Recount(added);
  return added;
}

JobWorker JobWorkers::Take(SessionId session) {
  const auto it = workers_.find(session);
  JobWorker worker = std::move(it->second);
  workers_.erase(it);
  if (worker.departs()) --departing_;
  words_.Set(word_bytes_ -= worker.word_bytes);
  joins_.Set(door_bytes_ -= worker.door_bytes);
  return worker;
}

void JobWorkers::Remove(SessionId session) { Release(Take(session)); }

void JobWorkers::Clear() {
  workers_.clear();
  words_.Set(word_bytes_ = 0);
  joins_.Set(door_bytes_ = 0);
  admission_.Clear();
  departing_ = 0;
}

JobWorkers::Disbanded JobWorkers::Disband() {
  Disbanded were;
  for (const auto& [session, worker] : workers_) {
    if (worker.IsMember()) were.members.insert(worker.join.worker_id());
    if (!worker.exit.has_value()) continue;
    v1::LaunchedExit& exit = were.exits.emplace_back();
    exit.set_launch(worker.join.launch());
    *exit.mutable_exit() = *worker.exit;
  }
  Clear();
  return were;
}

const JobWorker* JobWorkers::Find(SessionId session) const {
  const auto it = workers_.find(session);
  return it == workers_.end() ? nullptr : &it->second;
}

std::optional<SessionId> JobWorkers::SessionOf(const std::string& worker_id) const {
  for (const auto& [session, worker] : workers_)
    if (worker.IsFrom(worker_id)) return session;
  return std::nullopt;
}

std::vector<SessionId> JobWorkers::Members() const {
  std::vector<SessionId> members;
  for (const auto& [session, worker] : workers_)
    if (worker.generation != Generation{0}) members.push_back(session);
  return members;
}

std::vector<SessionId> JobWorkers::Waiting() const {
  std::vector<SessionId> waiting;
  for (const auto& [session, worker] : workers_)
    if (worker.generation == Generation{0}) waiting.push_back(session);
  return waiting;
}

std::vector<SessionId> JobWorkers::All() const {
  std::vector<SessionId> all;
  for (const auto& [session, worker] : workers_) all.push_back(session);
  return all;
}

bool JobWorkers::NoteExit(const v1::LaunchedExit& in) {
  bool known = false;
  for (auto& [session, worker] : workers_) {
    if (worker.join.launch() != in.launch()) continue;
    worker.exit = in.exit();
    known = true;
  }
  return known;
}

void JobWorkers::StreamEnded(SessionId session, absl::Time at, absl::string_view detail) {
  JobWorker& worker = workers_.at(session);
  if (!worker.departs()) ++departing_;
  worker.departs_at = at;
  worker.stream_end = std::string(detail);
}

std::vector<SessionId> JobWorkers::DueToDepart(absl::Time now) const {
  std::vector<std::pair<absl::Time, SessionId>> due;
  for (const auto& [session, worker] : workers_) {
    if (departing_ == 0) break;
    if (worker.departs() && (worker.exit.has_value() || worker.departs_at <= now))
      due.emplace_back(worker.departs_at, session);
  }
  std::sort(due.begin(), due.end());
  std::vector<SessionId> sessions;
  sessions.reserve(due.size());
  for (const auto& [at, session] : due) sessions.push_back(session);
  return sessions;
}

absl::Time JobWorkers::NextDeparture() const {
  absl::Time next = absl::InfiniteFuture();
  if (departing_ == 0) return next;
  for (const auto& [session, worker] : workers_) next = std::min(next, worker.departs_at);
  return next;
}

}  // namespace coordd
