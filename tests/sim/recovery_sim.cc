#include "tests/sim/recovery_sim.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"
#include "tests/server/support/builders.h"
#include "worker/protocol/join_message.h"

namespace coordd {
namespace {

constexpr int64_t kMaxRecoverySteps = 200000;
// What is due at once.
constexpr int kTurnsAtOnce = 1000;

ServerOptions FewSlots(uint64_t seed) {
  ServerOptions options = SimServerOptions();
  if (seed % 2 == 0) options.slots = 2;
  return options;
}

}  // namespace

RecoverySim::RecoverySim(uint64_t seed, const RecoverySimOptions& options, Log log)
    : options_(options),
      random_(seed),
      coordd_(FewSlots(seed), static_cast<size_t>(options.workers + options.newcomers), random_,
              CoorddHooks(std::move(log))),
      store_(seed, static_cast<size_t>(options.workers + options.newcomers), coordd_,
             {.no_versions = options.bug == RecoveryBug::kVersionsNotReported,
              .late_answers_count = options.bug == RecoveryBug::kLateAnswerCounts}),
      workers_(static_cast<size_t>(options.workers + options.newcomers)),
      kills_left_(options.kills),
      crashes_left_(options.crashes),
      changes_left_(options.changes),
      dozes_left_(options.dozes),
      drains_left_(options.drains),
      partitions_left_(options.partitions),
      evictions_left_(options.evictions),
      cuts_left_(options.cuts),
      newcomers_left_(options.newcomers),
      pauses_left_(options.pauses),
      relays_left_(options.relays) {
  if (options.stale) coordd_.KeepStale();
}

absl::Status RecoverySim::Run() {
  const absl::Time start = coordd_.now();
  COORDD_RETURN_IF_ERROR(coordd_.Start());
  for (int32_t w = 0; w < count(); ++w) {
    WorkerModel& worker = workers_[static_cast<size_t>(w)];
    if (are_elastic()) worker.phase = Phase::kOwners;
    worker.alive = w < options_.workers;
    if (worker.alive) coordd_.SendJoin(w, JoinFor(w));
  }
  for (int64_t steps = 0; !Finished(); ++steps) {
    if (steps > kMaxRecoverySteps || coordd_.now() - start > kMaxSimTime) {
      std::string waits;
      for (const WorkerModel& worker : workers_) {
        absl::StrAppend(&waits, " (", worker.alive ? "" : "dead, ", "generation ",
                        worker.generation, ", step ", worker.trained.step, ", phase ",
                        static_cast<int>(worker.phase), ":");
        for (const auto& [id, open] : worker.open) absl::StrAppend(&waits, " ", open.name);
        absl::StrAppend(&waits, ")");
      }
      return Wrong("no end after ", steps, " steps and ",
                   absl::FormatDuration(coordd_.now() - start), ":", waits);
    }
    COORDD_RETURN_IF_ERROR(Step());
  }
  return EndOfStore();
}

// The programs have ended. What a member has said of the store may be under way, and calls wait for
// it.
absl::Status RecoverySim::EndOfStore() {
  for (int32_t w = 0; w < count(); ++w) {
    if (coordd_.is_cut(w)) return absl::OkStatus();
    if (!workers_[static_cast<size_t>(w)].alive) store_.OnGone(w);
    while (coordd_.HasNews(w)) COORDD_RETURN_IF_ERROR(ToCoordd(w));
  }
  // coordd ends its turn with a look at what is due. That may take several, as what members have
  // brought back does.
  for (int turns = 0; coordd_.alive(); ++turns) {
    if (turns == kTurnsAtOnce) return Wrong("coordd does not come to rest");
    COORDD_RETURN_IF_ERROR(coordd_.Tick());
    if (coordd_.state().NextDeadline() > coordd_.now()) break;
  }
  return store_.CheckEnd();
}

bool RecoverySim::Finished() const {
  const bool some_are_done = std::any_of(
      workers_.begin(), workers_.end(),
      [](const WorkerModel& worker) { return worker.alive && worker.phase == Phase::kDone; });
  return std::all_of(
      workers_.begin(), workers_.end(), [this, some_are_done](const WorkerModel& worker) {
        const bool changed = worker.wants_to_end == 0 || worker.generation > worker.wants_to_end;
        if (!worker.alive) return true;
        if (worker.acknowledged) return false;  // it is to leave, and has not
        // Who came when the last commit was over waits in vain.
        if (are_elastic())
          return worker.phase == Phase::kDone || (some_are_done && IsOutside(worker));
        return worker.trained.step == options_.steps && worker.to_submit.empty() &&
               worker.open.empty() && changed;
      });
}

bool RecoverySim::CanRun(const WorkerModel& worker) const {
  if (worker.state == nullptr || worker.leaves) return false;
  if (HasSetWork(worker) || !worker.to_submit.empty()) return true;
  return worker.open.empty() && (MayLeave(worker) || CanGoOn(worker));
}

// One thing that may happen now, chosen by chance; time passes only when nothing may.
absl::Status RecoverySim::Step() {
  bool happened = false;
  COORDD_RETURN_IF_ERROR(Fault(happened));
  if (happened) return absl::OkStatus();
  if (!coordd_.alive() && random_.Below(20) == 0) return coordd_.Start();
  if (coordd_.has_broken_streams() && random_.Below(8) == 0) return coordd_.HearOfBrokenStream();
  if (coordd_.alive() && coordd_.is_storing() && random_.Below(3) == 0) return coordd_.StoreOn();
  COORDD_RETURN_IF_ERROR(TakeStale(happened));
  if (happened) return absl::OkStatus();
  COORDD_RETURN_IF_ERROR(store_.Step(StoreUsers(), happened));  // beside what else happens
  for (int tries = 0; tries < 20; ++tries) {
    const int32_t w = static_cast<int32_t>(random_.Below(workers_.size()));
    WorkerModel& worker = workers_[static_cast<size_t>(w)];
    bool moved = false;
    switch (random_.Below(4)) {
      case 0:
        if (coordd_.HasNews(w)) return ToCoordd(w);
        break;
      case 1:
        if (GetsTurns(worker) && coordd_.HasNewsFor(w)) return ToWorker(w);
        break;
      case 2:
        if (GetsTurns(worker) && CanRun(worker)) return RunProgram(w);
        break;
      default:
        COORDD_RETURN_IF_ERROR(MoveData(w, moved));
        if (moved) return absl::OkStatus();
    }
  }
  for (int32_t w = 0; w < count(); ++w) {
    WorkerModel& worker = workers_[static_cast<size_t>(w)];
    if (coordd_.HasNews(w)) return ToCoordd(w);
    if (!GetsTurns(worker)) continue;
    if (coordd_.HasNewsFor(w)) return ToWorker(w);
    if (CanRun(worker)) return RunProgram(w);
    bool moved = false;
    COORDD_RETURN_IF_ERROR(MoveData(w, moved));
    if (moved) return absl::OkStatus();
    const bool waits = worker.leaves && worker.ticked;  // its goodbye, for coordd
    if (worker.state != nullptr && worker.state->turn_due() && !waits) return Tick(w);
  }
  return PassTime();
}

absl::Status RecoverySim::TakeStale(bool& happened) {
  const int32_t w = static_cast<int32_t>(random_.Below(workers_.size()));
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  auto& stale = coordd_.stream(w).stale_from_coordd;
  happened = true;
  if (coordd_.HasStale(w) && random_.Below(4) == 0) {
    ++stale_;
    return coordd_.ReadStale(w);
  }
  const bool may = GetsTurns(worker) && worker.state != nullptr && !worker.leaves;
  if (may && !stale.empty() && random_.Below(4) == 0) {
    ++stale_;
    CoordinatorSaid said{std::move(stale.front().second), stale.front().first};
    stale.pop_front();
    if (options_.bug == RecoveryBug::kStaleIsTaken) said.stream = coordd_.stream(w).number;
    return Turn(w, std::move(said));
  }
  happened = false;
  return absl::OkStatus();
}

absl::Status RecoverySim::PassTime() {
  if (!coordd_.alive()) return coordd_.Start();
  if (coordd_.has_broken_streams()) return coordd_.HearOfBrokenStream();
  if (coordd_.is_storing()) return coordd_.StoreOn();
  absl::Time next = std::min(coordd_.state().NextDeadline(), NextMend());
  for (const WorkerModel& worker : workers_) {
    if (!worker.alive || worker.state == nullptr) continue;
    next = std::min(next, IsPaused(worker) ? worker.pauses_until : worker.state->NextDeadline());
    if (worker.computes_until > coordd_.now()) next = std::min(next, worker.computes_until);
  }
  if (next == absl::InfiniteFuture()) return Wrong("nothing will ever happen");
  coordd_.PassUntil(next);
  MendSomething();
  COORDD_RETURN_IF_ERROR(coordd_.Tick());
  for (int32_t w = 0; w < count(); ++w) COORDD_RETURN_IF_ERROR(Tick(w));
  return absl::OkStatus();
}

absl::Status RecoverySim::RunProgram(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (HasSetWork(worker) && (worker.to_submit.empty() || random_.Below(2) == 0))
    return DoSetWork(w);
  if (!worker.to_submit.empty()) return SubmitTensorOfStep(w);
  if (!worker.open.empty()) return absl::OkStatus();
  const bool goes_on = CanGoOn(worker) && random_.Below(2) == 0;
  if (MayLeave(worker) && !goes_on) return Leave(w);
  return CanGoOn(worker) ? GoOn(w) : absl::OkStatus();
}

absl::Status RecoverySim::Leave(int32_t w) {
  workers_[static_cast<size_t>(w)].leaves = true;
  return Turn(w, LeaveRequested{});
}

absl::Status RecoverySim::ToCoordd(int32_t w) {
  const std::optional<v1::WorkerMessage>& next = coordd_.stream(w).to_coordd.front();
  if (next.has_value() && !next->resume_report().over().empty()) ++over_;
  return coordd_.Read(w);
}

bool RecoverySim::OnSaid(int32_t w, const v1::CoordinatorMessage& message, bool current) {
  // Who dies before it hears of it is a member all the same.
  if (message.has_membership()) members_[message.generation()][w] = message.membership().rank();
  if (message.has_process_set_change()) NoteChange(message);
  if (message.has_resumed()) ++resumed_;
  return current && workers_[static_cast<size_t>(w)].alive;
}

absl::Status RecoverySim::OnDid(const Outgoing& out) {
  if (const auto* reply = std::get_if<StoreReply>(&out))
    return store_.OnReply(*reply, StoreUsers());
  if (const auto* close = std::get_if<CloseSession>(&out)) return OnClosed(*close);
  if (const auto* dismissed = std::get_if<DismissAnswer>(&out)) {
    const auto asked = drain_calls_.extract(dismissed->call);
    if (!asked.empty() && dismissed->status.ok())
      workers_[static_cast<size_t>(asked.mapped())].acknowledged = true;
  }
  return absl::OkStatus();
}

absl::Status RecoverySim::ToWorker(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  SimStream& stream = coordd_.stream(w);
  if (stream.from_coordd.empty()) return EndStream(w);
  v1::CoordinatorMessage message = coordd_.TakeFor(w);
  HearOfSlots(w, message);
  if (worker.state == nullptr) {
    return Begin(w, message);
  }
  return Turn(w, CoordinatorSaid{std::move(message), stream.number});
}

absl::Status RecoverySim::Turn(int32_t w, WorkerEvent event) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  std::vector<WorkerEffect> out;
  worker.ticked = false;
  worker.state->Step(std::move(event), coordd_.now(), out);
  COORDD_RETURN_IF_ERROR(Take(w, std::move(out)));
  COORDD_RETURN_IF_ERROR(CheckAlive(w));
  return random_.Below(2) == 0 ? Tick(w) : absl::OkStatus();
}

absl::Status RecoverySim::Tick(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (!GetsTurns(worker) || worker.state == nullptr) return absl::OkStatus();
  std::vector<WorkerEffect> out;
  worker.ticked = true;
  worker.state->Tick(coordd_.now(), out);
  if (!worker.state->question().empty() && !CanRun(worker))
    worker.state->Step(ProgramWaits{worker.state->question().front()}, coordd_.now(), out);
  COORDD_RETURN_IF_ERROR(Take(w, std::move(out)));
  return CheckAlive(w);
}

// It may have heard that the others have gone on without it.
absl::Status RecoverySim::CheckAlive(int32_t w) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  const absl::Status status = worker.state->status();
  if (status.ok() || worker.leaves || !worker.alive) return absl::OkStatus();
  if (!MayBeGone(w)) return status;
  ++evicted_;
  End(w);
  return absl::OkStatus();
}

absl::Status RecoverySim::Take(int32_t w, std::vector<WorkerEffect> effects) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  for (WorkerEffect& effect : effects) {
    if (auto* send = std::get_if<SendMessage>(&effect)) {
      const bool forgotten = options_.bug == RecoveryBug::kChangeNotAskedAgain && crashes() > 0 &&
                             send->message.has_change_members();
      if (send->message.has_tensors_ready()) {
        if (options_.bug == RecoveryBug::kBitKeptOverGeneration && w == 0)
          KeepBits(worker, *send->message.mutable_tensors_ready());
        CountReports(worker, send->message.tensors_ready());
      }
      const v1::Join join = send->message.join();
      if (!forgotten) coordd_.Send(w, std::move(send->message));
      if (!join.has_resume()) continue;
      if (auto report = store_.ReportOf(w, join.resume())) coordd_.Send(w, *std::move(report));
    } else if (const auto* open = std::get_if<OpenStream>(&effect)) {
      coordd_.Open(w, open->stream);
    } else if (const auto* launch = std::get_if<LaunchBatch>(&effect)) {
      COORDD_RETURN_IF_ERROR(OnLaunch(w, *launch));
    } else if (const auto* fail = std::get_if<FailTensor>(&effect)) {
      COORDD_RETURN_IF_ERROR(OnFailed(w, *fail));
    } else if (const auto* defined = std::get_if<DefineProcessSet>(&effect)) {
      OnDefined(w, *defined);
    } else if (const auto* set = std::get_if<EndProcessSet>(&effect)) {
      OnEnded(w, *set);
    } else if (const auto* answer = std::get_if<ProcessSetAnswer>(&effect)) {
      COORDD_RETURN_IF_ERROR(OnAnswered(w, *answer));
    } else if (const auto* newcomers = std::get_if<NewcomersWait>(&effect)) {
      worker.newcomers = newcomers->count;
    } else if (const auto* drain = std::get_if<DrainNoticed>(&effect)) {
      worker.is_to_leave = drain->until != absl::InfiniteFuture();
    } else if (std::holds_alternative<Stopped>(effect)) {
      ++drained_;
      End(w);
    } else if (std::holds_alternative<AbortExecution>(effect)) {
      worker.aborted = true;
    } else if (const auto* enter = std::get_if<EnterGeneration>(&effect)) {
      COORDD_RETURN_IF_ERROR(OnEnter(w, *enter));
    }
  }
  return absl::OkStatus();
}

absl::Status RecoverySim::OnLaunch(int32_t w, const LaunchBatch& launch) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (ToInt(launch.lane) >= kFirstScheduleLane) ++scheduled_batches_;
  Batch& batch = batches_[{worker.generation, {launch.lane, launch.sequence}}];
  std::vector<std::string> tensors;
  Part part{launch.tensors, {}, false};
  for (TensorId id : launch.tensors) {
    const auto open = worker.open.find(id);
    if (open == worker.open.end()) return Wrong("worker ", w, " launches what has ended");
    tensors.push_back(absl::StrCat(open->second.name, "#", open->second.instance));
    part.values.push_back(open->second.value);
  }
  const int32_t set = ToInt(launch.process_set);
  if (batch.parts.empty()) {
    batch.tensors = tensors;
    batch.members = members_.at(worker.generation);
    if (set != 0)
      std::erase_if(batch.members,
                    [of_set = WorkersOf(worker.generation, RanksOf(worker, set))](
                        const auto& member) { return !of_set.contains(member.first); });
    if (found_[worker.generation].contains(set)) ++batches_in_found_sets_;
  }
  if (batch.tensors != tensors) {
    return Wrong("worker ", w, " has [", absl::StrJoin(tensors, " "), "] in batch ",
                 launch.sequence, ", another has [", absl::StrJoin(batch.tensors, " "), "]");
  }
  if (!batch.parts.emplace(w, std::move(part)).second)
    return Wrong("worker ", w, " launches batch ", launch.sequence, " twice");
  worker.running[launch.lane].push_back(launch.sequence);
  return absl::OkStatus();
}

absl::Status RecoverySim::MoveData(int32_t w, bool& moved) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (!GetsTurns(worker) || worker.state == nullptr) return absl::OkStatus();
  if (worker.running.empty()) return absl::OkStatus();
  // The first of a lane that it has not ended; lanes go on one batch after the other.
  const auto& [lane, sequences] = *std::next(
      worker.running.begin(), static_cast<int64_t>(random_.Below(worker.running.size())));
  const GlobalKey key{worker.generation, {lane, sequences.front()}};
  Batch& batch = batches_.at(key);
  Part& part = batch.parts.at(w);
  if (worker.aborted) {
    moved = true;
    return EndPart(w, key, absl::AbortedError("aborted"));
  }
  bool all_launched = true, all_hold = true, all_arrives = true;
  std::optional<Suspect> suspect;
  for (const auto& [member, rank] : batch.members) {
    const auto other = batch.parts.find(member);
    const bool launched = other != batch.parts.end();
    const bool holds = launched && other->second.has_result;
    all_launched = all_launched && launched;
    all_hold = all_hold && holds;
    all_arrives = all_arrives && !IsCut(member, w);
    const WorkerModel& peer = workers_[static_cast<size_t>(member)];
    // Who has given up closes its connections, as the end of a process does.
    const bool has_closed = !peer.alive || (peer.aborted && peer.generation == key.first);
    if (has_closed && !holds && !suspect.has_value()) suspect = Suspect{Rank{rank}};
    if (IsCut(member, w)) suspect = Suspect{Rank{rank}, /*silent=*/true};
  }
  if (!part.has_result) {
    if (all_launched && all_arrives && (!suspect.has_value() || random_.Below(2) == 0)) {
      part.has_result = moved = true;
    }
  } else if (all_hold || options_.bug == RecoveryBug::kBufferReusedTooEarly) {
    moved = true;
    return EndPart(w, key, absl::OkStatus());
  }
  // Its data plane sees the end of a connection, or notices that nothing comes.
  if (!moved && suspect.has_value() && random_.Below(2) == 0) {
    moved = true;
    worker.aborted = true;  // that of this rank is over
    return EndPart(w, key, absl::UnavailableError("the peer is lost"), suspect);
  }
  return absl::OkStatus();
}

absl::Status RecoverySim::EndPart(int32_t w, const GlobalKey& key, absl::Status status,
                                  std::optional<Suspect> suspect) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  Part& part = batches_.at(key).parts.at(w);
  const auto lane = worker.running.find(key.second.first);
  lane->second.pop_front();
  if (lane->second.empty()) worker.running.erase(lane);
  if (status.ok()) {
    COORDD_RETURN_IF_ERROR(OnResults(w, key, part));
  } else {
    worker.interrupted[key.second] = part;
  }
  BatchDone done{key.second.first, key.second.second, std::move(status), suspect};
  done.has_result = part.has_result;
  return Turn(w, std::move(done));
}

absl::Status RecoverySim::OnResults(int32_t w, const GlobalKey& key, const Part& part) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  for (size_t at = 0; at < part.ids.size(); ++at) {
    const auto open = worker.open.extract(part.ids[at]);
    if (open.empty()) return Wrong("worker ", w, " gets a result twice");
    COORDD_RETURN_IF_ERROR(OnResult(w, open.mapped(), key.first));
    COORDD_RETURN_IF_ERROR(OnValue(w, open.mapped(), key.first, batches_.at(key), at));
  }
  return absl::OkStatus();
}

absl::Status RecoverySim::OnResult(int32_t w, const Tensor& tensor, int64_t generation) {
  if (tensor.instance < 0) return absl::OkStatus();  // there are several of that name
  const std::string what = absl::StrCat(tensor.name, "#", tensor.instance);
  std::map<int32_t, int64_t>& got = results_[what];
  for (const auto& [other, theirs] : got) {
    // What the dead have seen nobody will hear of.
    WorkerModel& another = workers_[static_cast<size_t>(other)];
    if (theirs == generation || !another.alive) continue;
    const std::string text =
        absl::StrCat("worker ", w, " gets ", what, " of generation ", generation, ", worker ",
                     other, " got that of generation ", theirs);
    // Who had the earlier one is as good as dead when it is being evicted.
    const int32_t earlier = theirs < generation ? other : w;
    if (!MayBeGone(earlier)) return Wrong(text);
    workers_[static_cast<size_t>(earlier)].apart = text;
    workers_[static_cast<size_t>(earlier)].apart_from = std::max(theirs, generation);
  }
  got[w] = generation;
  return absl::OkStatus();
}

// As JobTable and Completion do it.
absl::Status RecoverySim::OnEnter(int32_t w, const EnterGeneration& enter) {
  const v1::CoordinatorMessage& membership = enter.membership;
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  std::map<LaneId, int64_t> completed;
  for (const v1::LaneRepair& repair : membership.membership().repairs())
    completed[LaneId{repair.lane()}] = repair.completed();
  if (!worker.apart.empty() && membership.generation() >= worker.apart_from)
    return Wrong(worker.apart, ", and goes on");
  const int64_t before = std::exchange(worker.generation, membership.generation());
  TensorsSubmitted again;
  again.again = true;
  for (const auto& [key, part] : std::exchange(worker.interrupted, {})) {
    const bool skips = options_.bug == RecoveryBug::kSkipsRepair && w == 0;
    if (key.second <= completed[key.first] && !skips) {
      if (!part.has_result) return Wrong("worker ", w, " has no result of a batch that counts");
      ++held_;
      COORDD_RETURN_IF_ERROR(OnResults(w, {before, key}, part));
      continue;
    }
    ++again_;
    for (TensorId id : part.ids)
      again.tensors.push_back({id, SpecOf(worker.open.at(id)), coordd_.now() + absl::Minutes(10)});
  }
  worker.aborted = false;
  if (membership.epoch() != coordd_.epoch_of(membership.generation())) ++told_again_;
  COORDD_RETURN_IF_ERROR(OnFound(w, membership.membership().size(), enter.process_sets));
  if (again.tensors.empty()) return absl::OkStatus();
  std::vector<WorkerEffect> out;
  worker.state->Step(std::move(again), coordd_.now(), out);
  return Take(w, std::move(out));
}

}  // namespace coordd
