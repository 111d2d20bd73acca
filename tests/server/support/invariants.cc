#include "tests/server/support/invariants.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/slot_dictionary.h"
#include "common/protocol/tensor_spec.h"

namespace coordd {
namespace {

bool SameRuns(const std::vector<v1::NodeRun>& a,
              const google::protobuf::RepeatedPtrField<v1::NodeRun>& b) {
  if (static_cast<int>(a.size()) != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const v1::NodeRun& other = b.Get(static_cast<int>(i));
    if (a[i].nodes() != other.nodes() || a[i].ranks_per_node() != other.ranks_per_node()) {
      return false;
    }
  }
  return true;
}

// A rank's place must follow from the node runs.
std::string TopologyOf(const v1::Membership& m) {
  std::string text;
  for (const v1::TopologyLevel& level : m.topology())
    absl::StrAppend(&text, level.SerializeAsString(), "/");
  return text;
}

bool PlaceFollows(const v1::Membership& m) {
  int32_t next = 0;
  int32_t cross_rank = 0;
  int32_t cross_size = 0;
  int32_t local_rank = -1;
  int32_t local_size = 0;
  for (const v1::NodeRun& run : m.nodes()) {
    for (int32_t node = 0; node < run.nodes(); ++node) {
      if (next <= m.rank() && m.rank() < next + run.ranks_per_node()) {
        local_rank = m.rank() - next;
        local_size = run.ranks_per_node();
        cross_rank = cross_size;
      }
      if (m.local_rank() < run.ranks_per_node()) ++cross_size;
      next += run.ranks_per_node();
    }
  }
  return next == m.size() && local_rank == m.local_rank() && local_size == m.local_size() &&
         cross_rank == m.cross_rank() && cross_size == m.cross_size();
}

}  // namespace

bool HistoryChecker::Open::Plan(bool is_pairwise) {
  int64_t& open = is_pairwise ? pairwise : plain;
  if (open == 0 || plain + pairwise == failed) return false;
  --open;
  if (plain + pairwise == failed) *this = Open();
  return true;
}

bool HistoryChecker::Open::Fail() {
  if (plain + pairwise == failed) return false;
  if (plain + pairwise == ++failed) *this = Open();
  return true;
}

void HistoryChecker::Open::Forget() {
  plain = 0;
  failed = std::min(failed, pairwise);
}

void HistoryChecker::SawEnd(SessionId session) {
  sessions_.erase(session);
  closed_.erase(session);
}

void HistoryChecker::Saw(const Inbound& in) {
  if (const auto* message = std::get_if<SessionMessage>(&in)) {
    SawMessage(message->session, message->message);
  } else if (const auto* shared = std::get_if<SharedMessage>(&in)) {
    for (const SessionRange& range : shared->from)
      for (int32_t i = 0; i < range.count; ++i)
        SawMessage(SessionId{ToInt(range.first) + i}, *shared->message);
  } else if (const auto* ended = std::get_if<SessionEnded>(&in)) {
    SawEnd(ended->session);
  } else if (const auto* lost = std::get_if<StreamsLost>(&in)) {
    for (SessionId session : lost->sessions) SawEnd(session);
  } else if (const auto* call = std::get_if<StoreCall>(&in)) {
    calls_.insert(call->call);
  } else if (const auto* trace = std::get_if<TraceCall>(&in)) {
    calls_.insert(trace->call);
  } else if (const auto* exits = std::get_if<ExitsReported>(&in)) {
    calls_.insert(exits->call);
  } else if (const auto* dismiss = std::get_if<DismissCall>(&in)) {
    calls_.insert(dismiss->call);
  } else if (const auto* cancelled = std::get_if<CallCancelled>(&in)) {
    calls_.erase(cancelled->call);
  } else if (const auto* persisted = std::get_if<Persisted>(&in)) {
    if (persisted->status.ok()) stored_.insert({persisted->job, persisted->generation});
  }
}

// coordd closes the streams of a generation that goes on, or that another one is to follow: its
// members come back to it.
void HistoryChecker::SawSuspension(const std::string& job) {
  const auto newest = generations_.find({job, newest_[job]});
  if (newest == generations_.end()) return;
  GenerationRecord& generation = newest->second;
  if (generation.reforms) generation.ended = generation.reforms = false;
  generation.taken_up = true;
  if (generation.ended) return;
  generation.session_of_rank.clear();
  generation.interrupted = true;
  generation.ForgetSlots();
}

void HistoryChecker::SawRestart() {
  sessions_.clear();
  closed_.clear();
  calls_.clear();
  for (auto& [id, generation] : generations_) {
    generation.session_of_rank.clear();
    // Who has heard that another one follows comes back and says so; perhaps nobody has.
    if (generation.reforms) generation.ended = generation.reforms = false;
    generation.interrupted = !generation.ended;
    generation.taken_up = true;
    generation.ForgetSlots();
  }
  // A number that was proposed and not stored was never heard of.
  proposed_.clear();
  for (const auto& [job, generation] : stored_) {
    proposed_[job] = std::max(proposed_[job], generation);
  }
}

absl::Status HistoryChecker::SawPersist(const Persist& persist) {
  if (!durable_) return Broken("something is stored though nothing need be");
  if (persist.writes.empty()) return Broken("nothing is to be stored");
  if (persist.generation == Generation{0}) return absl::OkStatus();
  Generation& highest = proposed_[persist.job];
  if (persist.generation <= highest) {
    return Broken("generation ", ToInt(persist.generation), " of job ", persist.job,
                  " is proposed twice");
  }
  highest = persist.generation;
  return absl::OkStatus();
}

void HistoryChecker::SawMessage(SessionId session, const v1::WorkerMessage& message) {
  if (closed_.contains(session)) return;
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) {
    if (message.join().has_resume()) {
      SawResumingJoin(session, message.join());
    } else if (message.has_join()) {
      sessions_[session].job = message.join().job();
      sessions_[session].worker_id = message.join().worker_id();
      sessions_[session].keeps_sets = message.join().keeps_process_sets();
      sessions_[session].knows_slots = message.join().knows_slots();
      sessions_[session].knows_topology = message.join().knows_topology();
    }
    return;
  }
  Member& member = it->second;
  if (member.resuming && message.has_resume_report())
    member.report.MergeFrom(message.resume_report());
  const bool is_current = message.generation() == ToInt(member.generation) &&
                          message.epoch() == member.epoch && member.rank >= 0;
  if (!is_current) return;
  const GenerationRecord& generation = generations_[{member.job, member.generation}];
  if (generation.reforms && message.has_recovery_report()) {
    // It is one that waits, and owed nothing.
    if (message.recovery_report().process_sets().more()) return;
    Member waits;
    waits.job = member.job;
    waits.worker_id = member.worker_id;
    waits.keeps_sets = member.keeps_sets;
    waits.knows_slots = member.knows_slots;
    waits.knows_topology = member.knows_topology;
    waits.survives = true;
    member = std::move(waits);
    return;
  }
  if (generation.ended) return;
  for (const v1::TensorSpec& tensor : message.tensors_ready().tensors()) {
    const bool is_pairwise =
        tensor.kind() == v1::COLLECTIVE_KIND_SEND || tensor.kind() == v1::COLLECTIVE_KIND_RECEIVE;
    member.open[{tensor.process_set(), tensor.name()}].Submit(is_pairwise);
  }
  for (const v1::CachedTensors& cached : message.tensors_ready().cached()) {
    ForEachSlot(cached.first_slot(), cached.bits(), [&](int64_t slot) {
      const auto name = generation.slots.find({cached.process_set(), slot});
      if (name != generation.slots.end())
        member.open[{cached.process_set(), name->second}].Submit(/*is_pairwise=*/false);
      return true;
    });
  }
  if (message.has_schedule_ack()) {
    // It took these tensors along; coordd owes no answer to a report of them.
    for (const auto& tensor : member.schedules[message.schedule_ack().id()])
      member.open[tensor].Forget();
  }
  const v1::ProcessSetRequest& request = message.process_set_request();
  if (!request.name().empty() && !request.withdrawn()) member.open_names.insert(request.name());
  if (request.request() == member.last_request + 1 && !request.withdrawn()) {
    member.open_requests.insert(++member.last_request);
  }
}

absl::Status HistoryChecker::Saw(const Effects& effects) {
  announced_.clear();
  for (const Event& event : effects.events)
    if (event.kind == Event::Kind::kJobRestored) SawSuspension(event.job);
  for (const Outgoing& out : effects.outgoing) {
    if (!broken_.ok()) return broken_;
    if (const auto* deliver = std::get_if<Deliver>(&out)) {
      if (deliver->to.empty()) broken_ = Broken("a message to nobody");
      for (SessionId session : deliver->to) {
        if (broken_.ok()) broken_ = SawDelivery(session, *deliver->message);
      }
    } else if (const auto* close = std::get_if<CloseSession>(&out)) {
      if (!closed_.insert(close->session).second) broken_ = Broken("a session is closed twice");
      sessions_.erase(close->session);
    } else {
      const auto* reply = std::get_if<StoreReply>(&out);
      const auto* exits = std::get_if<ExitsAnswer>(&out);
      const auto* dismissed = std::get_if<DismissAnswer>(&out);
      const CallId call = reply != nullptr       ? reply->call
                          : exits != nullptr     ? exits->call
                          : dismissed != nullptr ? dismissed->call
                                                 : std::get<TraceAnswer>(out).call;
      if (calls_.erase(call) == 0)
        broken_ = Broken("an answer to a call that does not wait for one");
    }
  }
  for (const GenerationId& id : announced_) {
    if (broken_.ok()) broken_ = CheckComplete(id);
  }
  for (const Persist& persist : effects.persist) {
    if (broken_.ok()) broken_ = SawPersist(persist);
  }
  return broken_;
}

absl::Status HistoryChecker::SawDelivery(SessionId session, const v1::CoordinatorMessage& message) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return Broken("a message to a session that is closed or unknown");
  Member& member = it->second;
  if (message.has_membership()) return SawMembership(session, member, message);
  if (message.has_process_sets()) return SawSets(member, message.process_sets());
  if (member.awaits_sets) return Broken("a message of a generation whose sets are not known yet");
  if (message.has_resumed()) return SawResumed(session, member, message);
  if (message.position() > 0) {
    if (message.position() <= member.position) return Broken("positions that do not grow");
    member.position = message.position();
  }
  if (member.resuming && message.position() > 0) return SawMissed(member, message);
  if (message.generation() != ToInt(member.generation)) {
    return Broken("a message of generation ", message.generation(), " to a member of ",
                  ToInt(member.generation));
  }
  if (message.has_plan()) return SawPlan(member, message.plan());
  if (message.has_process_set_change()) return SawSetChange(member, message.process_set_change());
  if (message.has_schedule()) return SawSchedule(member, message.schedule());
  if (message.has_cut()) return SawCut(member, message.cut());
  if (message.has_tensor_failures()) return SawFailures(member, message.tensor_failures());
  if (message.has_abort()) {
    if (std::exchange(member.resuming, false)) member.epoch = message.epoch();
    GenerationRecord& generation = generations_[{member.job, member.generation}];
    if (message.abort().reforms() && !message.abort().in_flight())
      return Broken("a generation that follows a goodbye");
    if (generation.ended && generation.reforms != message.abort().reforms())
      return Broken("members are told differently whether a generation follows");
    generation.ended = true;
    generation.reforms = message.abort().reforms();
  }
  if (message.has_waiting() && member.rank >= 0) return Broken("Waiting to a member");
  return absl::OkStatus();
}

absl::Status HistoryChecker::SawSchedule(Member& member, const v1::Schedule& schedule) {
  GenerationRecord& generation = generations_[{member.job, member.generation}];
  if (generation.ended) return Broken("a schedule in a generation that has ended");
  if (!member.sets.contains(schedule.process_set())) {
    return Broken("a schedule for process set ", schedule.process_set(), ", which rank ",
                  member.rank, " does not know");
  }
  auto& tensors = member.schedules[schedule.id()];
  if (!tensors.empty()) return Broken("schedule ", schedule.id(), " twice");
  tensors = TensorsOf(schedule);
  const auto [first, is_new] =
      generation.schedules.emplace(schedule.id(), schedule.SerializeAsString());
  if (is_new || first->second == schedule.SerializeAsString()) return absl::OkStatus();
  return Broken("two ranks have different schedules ", schedule.id());
}

absl::Status HistoryChecker::SawCut(Member& member, const v1::Cut& cut) {
  GenerationRecord& generation = generations_[{member.job, member.generation}];
  if (member.schedules.erase(cut.id()) == 0) return Broken("a cut of schedule ", cut.id());
  const auto [first, is_new] = generation.cuts.emplace(cut.id(), cut.position());
  if (is_new || first->second == cut.position()) return absl::OkStatus();
  return Broken("schedule ", cut.id(), absl::StrCat(" is cut at ", cut.position(), " and at "),
                first->second);
}

absl::Status HistoryChecker::SawMembership(SessionId session, Member& member,
                                           const v1::CoordinatorMessage& message) {
  const v1::Membership& m = message.membership();
  const GenerationId id{member.job, Generation{message.generation()}};
  if (member.resuming && id.second > member.generation) {
    // It waits for the next one, and that is this one.
    Member waits;
    waits.job = member.job;
    waits.worker_id = member.worker_id;
    waits.keeps_sets = member.keeps_sets;
    waits.knows_slots = member.knows_slots;
    waits.knows_topology = member.knows_topology;
    waits.survives = true;
    member = std::move(waits);
  }
  if (member.rank >= 0) return Broken("a second Membership for one session");
  Generation& newest = newest_[member.job];
  const bool is_new = !generations_.contains(id);
  if (is_new && id.second <= newest) {
    return Broken("generation ", message.generation(), " follows ", ToInt(newest));
  }
  const bool again = !is_new && generations_.at(id).interrupted;  // it had not heard
  if (!is_new && !announced_.contains(id) && !again)
    return Broken("a member joins a generation late");
  if (again) ForgetUnheard(id);
  if (durable_ && !stored_.contains(id)) {
    return Broken("generation ", ToInt(id.second), " is announced before it is stored");
  }
  newest = id.second;
  announced_.insert(id);
  GenerationRecord& generation = generations_[id];
  if (is_new) {
    generation.size = m.size();
    generation.runs = {m.nodes().begin(), m.nodes().end()};
    generation.topology = TopologyOf(m);
  }
  if (generation.size != m.size() || !SameRuns(generation.runs, m.nodes())) {
    return Broken("members disagree on the size or the nodes");
  }
  if (generation.topology != TopologyOf(m)) return Broken("members disagree on the topology");
  if (m.topology_size() > 0 && !member.knows_topology)
    return Broken("rank ", m.rank(), " does not know what the topology is");
  if (m.rank() < 0 || m.rank() >= m.size()) return Broken("rank ", m.rank(), " of ", m.size());
  if (!generation.session_of_rank.try_emplace(m.rank(), session).second) {
    return Broken("rank ", m.rank(), " is given twice");
  }
  if (!PlaceFollows(m)) return Broken("the place of rank ", m.rank(), " contradicts the nodes");
  member.epoch = message.epoch();
  member.generation = id.second;
  member.rank = m.rank();
  member.awaits_sets = m.process_sets_follow();
  generation.worker_of_rank[m.rank()] = member.worker_id;
  if (member.survives) generation.survivors[member.worker_id] = m.rank();
  generation.keeps_sets = generation.keeps_sets && member.keeps_sets;
  return SawSlotsKept(member, m.slots());
}

absl::Status HistoryChecker::SawPlan(Member& member, const v1::CollectivePlan& plan) {
  GenerationRecord& generation = generations_[{member.job, member.generation}];
  if (generation.ended) return Broken("a plan in a generation that has ended");
  for (const v1::FusedBatch& batch : plan.batches()) {
    COORDD_RETURN_IF_ERROR(SawBatch(member, generation, batch));
  }
  return SawBindings(member, generation, plan);
}

absl::Status HistoryChecker::SawBatch(Member& member, GenerationRecord& generation,
                                      const v1::FusedBatch& batch) {
  const int32_t lane = batch.lane();
  if (lane != batch.process_set()) return Broken("a batch of a set on the lane of another");
  if (!member.sets.contains(lane)) {
    return Broken("a plan for process set ", lane, ", which rank ", member.rank, " does not know");
  }
  if (batch.sequence() != ++member.last_batch[lane]) return Broken("batch numbers with a gap");
  COORDD_RETURN_IF_ERROR(SawSlots(member, batch));
  const std::vector<std::string> tensors = NamesIn(generation.slots, batch);
  if (tensors.empty()) return Broken("an empty batch");
  std::vector<std::vector<std::string>>& batches = generation.batches[lane];
  const size_t index = static_cast<size_t>(batch.sequence() - 1);
  if (index == batches.size()) batches.push_back(tensors);
  if (index > batches.size() || batches[index] != tensors) {
    return Broken("batch ", batch.sequence(), " differs between ranks");
  }
  if (!batch.specs().empty() && batch.specs_size() != batch.tensors_size()) {
    return Broken("batch ", batch.sequence(), " has specs of other tensors");
  }
  const bool has_joined = member.has_joined();
  const bool is_pair = lane != 0 && generation.sets.at(lane).is_pair();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string& name = tensors[i];
    const int index = static_cast<int>(i);
    const bool has_spec = index < batch.specs_size() && batch.specs(index).name() == name;
    Open& open = member.open[{is_pair ? 0 : lane, name}];
    // Of a rank that has joined: perhaps it has not submitted this one.
    if (!is_pair && open.plain <= open.failed && has_joined && has_spec) continue;
    if (!open.Plan(is_pair)) {
      return Broken("tensor ", name, " is planned, but not submitted by rank ", member.rank);
    }
  }
  return absl::OkStatus();
}

absl::Status HistoryChecker::SawFailures(Member& member, const v1::TensorFailures& failures) {
  if (failures.failures().empty()) return Broken("no failures in TensorFailures");
  for (const v1::TensorFailure& failure : failures.failures()) {
    if (failure.code() == 0 || failure.message().empty()) {
      return Broken("tensor ", failure.name(), " fails without saying why");
    }
    if (!member.open[{failure.process_set(), failure.name()}].Fail()) {
      return Broken("tensor ", failure.name(), " fails without a submission of rank ", member.rank);
    }
  }
  return absl::OkStatus();
}

absl::Status HistoryChecker::CheckComplete(const GenerationId& id) const {
  const GenerationRecord& generation = generations_.at(id);
  // Announced again for its end only: who is missing is lost.
  if (generation.ended) return absl::OkStatus();
  if (static_cast<int32_t>(generation.session_of_rank.size()) == generation.size) {
    return CheckSurvival(id);
  }
  return Broken("generation ", ToInt(id.second), " has ranks that nobody holds");
}

}  // namespace coordd
