// What HistoryChecker demands of a coordd that was started again under running generations.
#include <algorithm>
#include <set>
#include <utility>

#include "common/base/status_macros.h"
#include "tests/server/support/invariants.h"

namespace coordd {

std::vector<std::pair<int32_t, std::string>> HistoryChecker::TensorsOf(
    const v1::Schedule& schedule) {
  std::vector<std::pair<int32_t, std::string>> tensors;
  for (const v1::ScheduledBatch& batch : schedule.batches()) {
    for (const v1::TensorSpec& tensor : batch.tensors())
      tensors.emplace_back(schedule.process_set(), tensor.name());
  }
  return tensors;
}

void HistoryChecker::SawResumingJoin(SessionId session, const v1::Join& join) {
  Member& member = sessions_[session];
  member.job = join.job();
  member.worker_id = join.worker_id();
  member.keeps_sets = join.keeps_process_sets();
  member.knows_slots = join.knows_slots();
  member.knows_topology = join.knows_topology();
  member.generation = Generation{join.resume().generation()};
  member.rank = join.resume().rank();
  member.position = join.resume().position();
  member.resuming = true;
}

// What others were told as well: exactly that.
absl::Status HistoryChecker::SawMissed(Member& member, const v1::CoordinatorMessage& message) {
  GenerationRecord& generation = generations_[{member.job, member.generation}];
  for (const v1::FusedBatch& batch : message.plan().batches()) {
    const std::vector<std::vector<std::string>>& batches = generation.batches[batch.lane()];
    const size_t index = static_cast<size_t>(batch.sequence() - 1);
    const std::vector<std::string> tensors = NamesIn(generation.slots_before, batch);
    if (index >= batches.size() || batches[index] != tensors) {
      return Broken("rank ", member.rank, " is told of batch ", batch.sequence(), " on lane ",
                    batch.lane(), ", which no rank was told of before coordd was started again");
    }
    member.last_batch[batch.lane()] = batch.sequence();
  }
  const v1::ProcessSetChange& change = message.process_set_change();
  member.last_request = std::max(member.last_request, change.request());
  return absl::OkStatus();
}

// What no rank reports was heard by nobody, or by all and long ago.
void HistoryChecker::ForgetUnheard(const GenerationId& id) {
  GenerationRecord& generation = generations_[id];
  if (!std::exchange(generation.interrupted, false)) return;
  std::map<int32_t, int64_t> launched;
  std::map<int32_t, SetRecord> sets;
  std::map<int64_t, std::string> schedules;
  int64_t answered = 0, heard = 0;
  std::set<int32_t> reported;
  auto add = [&](const v1::ProcessSetChange& change) {
    if (change.ranks().empty()) return;
    reported.insert(change.process_set());
    sets[change.process_set()] = {{change.ranks().begin(), change.ranks().end()},
                                  change.request(),
                                  /*ended=*/false,
                                  0,
                                  change.name()};
  };
  for (const auto& [number, ranks] : generation.found_sets) sets[number] = {ranks, /*request=*/1};
  for (const auto& [session, member] : sessions_) {
    if (member.job != id.first || member.generation != id.second) continue;
    heard = std::max(heard, member.position);
    for (const v1::LanePosition& lane : member.report.lanes())
      launched[lane.lane()] = std::max(launched[lane.lane()], lane.launched());
    for (const v1::ProcessSetChange& change : member.report.process_sets()) add(change);
    for (const v1::CoordinatorMessage& message : member.report.received()) {
      add(message.process_set_change());
      if (message.has_schedule())
        schedules[message.schedule().id()] = message.schedule().SerializeAsString();
      answered = std::max(answered, message.process_set_change().request());
    }
    answered = std::max(answered, member.report.answered_requests());
  }
  for (const auto& [session, member] : sessions_) {
    if (member.job != id.first || member.generation != id.second) continue;
    for (const v1::CoordinatorMessage& message : member.report.received()) {
      const v1::ProcessSetChange& change = message.process_set_change();
      if (!message.has_process_set_change() || !change.ranks().empty()) continue;
      // As long as no member of it has heard of its end, it goes on.
      const auto set = sets.find(change.process_set());
      if (set == sets.end()) continue;
      const std::vector<int32_t>& ranks = set->second.ranks;
      if (std::find(ranks.begin(), ranks.end(), member.rank) != ranks.end())
        set->second.ended = true;
    }
  }
  for (auto& [lane, batches] : generation.batches) {
    const size_t heard = static_cast<size_t>(launched[lane]);
    if (batches.size() > heard) batches.resize(heard);
  }
  for (const auto& [number, record] : generation.sets) {
    // Of one that a member reports, only outsiders may have heard the end.
    if (record.ended && record.ended_at <= heard && !reported.contains(number))
      sets[number].ended = true;
  }
  generation.sets = std::move(sets);
  std::erase_if(generation.answers, [answered, heard](const auto& answer) {
    return answer.first > answered || answer.second.position > heard;
  });
  int64_t last_schedule = 0;
  for (const auto& [session, member] : sessions_)
    last_schedule = std::max(last_schedule, member.report.last_schedule());
  std::erase_if(generation.schedules,
                [=](const auto& schedule) { return schedule.first > last_schedule; });
  generation.cuts.clear();
}

absl::Status HistoryChecker::SawResumed(SessionId session, Member& member,
                                        const v1::CoordinatorMessage& message) {
  const GenerationId id{member.job, member.generation};
  if (!member.resuming) return Broken("rank ", member.rank, " is resumed without having asked");
  if (message.generation() != ToInt(member.generation) || !generations_.contains(id))
    return Broken("rank ", member.rank, " is resumed in another generation");
  ForgetUnheard(id);
  GenerationRecord& generation = generations_.at(id);
  if (generation.ended) return Broken("a generation that has ended is resumed");
  if (!member.report.over().empty()) return Broken("a generation is resumed that is over for one");
  if (!generation.session_of_rank.try_emplace(member.rank, session).second)
    return Broken("rank ", member.rank, " is resumed twice");
  announced_.insert(id);
  member.resuming = false;
  member.epoch = message.epoch();
  for (const v1::LanePosition& lane : member.report.lanes()) {
    int64_t& last = member.last_batch[lane.lane()];
    last = std::max(last, lane.launched());
  }
  member.last_request = std::max(member.last_request, member.report.answered_requests());
  member.sets = {0};
  for (const auto& [number, set] : generation.sets) {
    const bool is_in =
        std::find(set.ranks.begin(), set.ranks.end(), member.rank) != set.ranks.end();
    if (is_in && !set.ended) member.sets.insert(number);
  }
  // Which of them are cut is what its rank knows.
  for (const auto& [number, text] : generation.schedules) {
    v1::Schedule schedule;
    if (schedule.ParseFromString(text)) member.schedules[number] = TensorsOf(schedule);
  }
  member.report.Clear();
  return SawSlotsKept(member, message.resumed().slots());
}

}  // namespace coordd
