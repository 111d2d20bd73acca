// What HistoryChecker demands of process sets: within a generation, and from one to the next.
#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/server/support/invariants.h"

namespace coordd {

absl::Status HistoryChecker::SawSetChange(Member& member, const v1::ProcessSetChange& change) {
  GenerationRecord& generation = generations_[{member.job, member.generation}];
  if (generation.ended) return Broken("a process set in a generation that has ended");
  const int64_t request = change.request();
  if (!change.name().empty() && (request != 0 || member.open_names.erase(change.name()) == 0)) {
    return Broken("an answer about process set ", change.name(), ", which rank ", member.rank,
                  " does not wait for");
  }
  if (request != 0) {
    // A rank that has joined hears of what others ask for and cannot have, as if it had asked too.
    const bool for_joined =
        change.code() != 0 && request == member.last_request + 1 && member.has_joined();
    // Who has heard of an end before all others hears of it once more.
    const bool again = generation.taken_up && change.code() == 0 && change.ranks().empty() &&
                       request <= member.last_request && !member.open_requests.contains(request);
    if (for_joined) {
      ++member.last_request;
    } else if (again) {
      member.sets.erase(change.process_set());  // there, if it has given up its own request
      return absl::OkStatus();
    } else if (member.open_requests.erase(request) == 0) {
      return Broken("an answer to request ", request, ", which rank ", member.rank,
                    " does not wait for");
    }
    const std::string text = change.SerializeAsString();
    const auto [answer, is_new] = generation.answers.try_emplace(
        request, Said{text, change.code() == 0 ? member.position : 0});
    v1::ProcessSetChange first;
    first.ParseFromString(answer->second.what);
    // A coordd that was started again does not know in which words.
    const bool refused_again = generation.taken_up && first.code() != 0 && change.code() != 0;
    if (!is_new && !refused_again && answer->second.what != text) {
      return Broken("request ", request, " is answered differently");
    }
  }
  if (change.code() != 0) {
    return change.message().empty() ? Broken("a refusal that does not say why") : absl::OkStatus();
  }
  const int32_t set = change.process_set();
  if (change.ranks().empty()) {
    const auto known = generation.sets.find(set);
    if (known == generation.sets.end()) return Broken("the end of an unknown process set ", set);
    const std::vector<int32_t>& ranks = known->second.ranks;
    const bool was_in = std::find(ranks.begin(), ranks.end(), member.rank) != ranks.end();
    if (known->second.name != change.name() || (!was_in && !change.name().empty()))
      return Broken("the end of process set ", set, " is told to others than its addition");
    known->second.ended = true;
    known->second.ended_at = member.position;
    if (was_in && member.sets.erase(set) == 0) return Broken("process set ", set, " ends twice");
    return absl::OkStatus();
  }
  const SetRecord record{
      {change.ranks().begin(), change.ranks().end()}, request, /*ended=*/false, 0, change.name()};
  const auto [it, is_new] = generation.sets.try_emplace(set, record);
  if (set <= generation.last_found_set || it->second.ended || it->second != record)
    return Broken("process set ", set, " is announced twice");
  const bool is_in =
      std::find(record.ranks.begin(), record.ranks.end(), member.rank) != record.ranks.end();
  if (record.is_pair() && (!is_in || record.ranks.size() != 2)) return Broken("a pair of others");
  if (!record.name.empty() && !is_in) return Broken("a set that others have made alone");
  if (is_in && !member.sets.insert(set).second) {
    return Broken("process set ", set, " is announced twice");
  }
  return absl::OkStatus();
}

absl::Status HistoryChecker::SawSets(Member& member, const v1::ProcessSets& part) {
  if (!member.awaits_sets) return Broken("process sets for one who does not wait for them");
  GenerationRecord& generation = generations_[{member.job, member.generation}];
  generation.last_found_set = part.last_process_set();
  for (const v1::ProcessSet& set : part.sets()) {
    const std::vector<int32_t> ranks(set.ranks().begin(), set.ranks().end());
    const auto [known, is_new] = generation.found_sets.try_emplace(set.process_set(), ranks);
    if (known->second != ranks)
      return Broken("ranks find process set ", known->first, " different");
    if (is_new) generation.sets[known->first] = {ranks, /*request=*/1};
    if (std::find(ranks.begin(), ranks.end(), member.rank) != ranks.end())
      member.sets.insert(known->first);
    ++member.found_sets;
  }
  member.awaits_sets = part.more();
  if (part.more() || member.found_sets == generation.found_sets.size()) return absl::OkStatus();
  return Broken("rank ", member.rank, " is not told of all process sets");
}

// Of what it leaves a generation that was taken up anew knows only what some survivor had heard.
absl::Status HistoryChecker::CheckSurvival(const GenerationId& id) const {
  const auto at = generations_.find(id);
  const GenerationRecord& generation = at->second;
  if (at == generations_.begin() || std::prev(at)->first.first != id.first) {
    return generation.found_sets.empty() ? absl::OkStatus() : Broken("sets of no generation");
  }
  const GenerationRecord& before = std::prev(at)->second;
  for (const auto& [number, set] : before.sets) {
    std::vector<int32_t> left;
    for (int32_t rank : set.ranks) {
      const auto worker = before.worker_of_rank.find(rank);
      if (worker == before.worker_of_rank.end()) continue;
      const auto to = generation.survivors.find(worker->second);
      if (to != generation.survivors.end()) left.push_back(to->second);
    }
    std::sort(left.begin(), left.end());
    const auto found = generation.found_sets.find(number);
    const bool there = found != generation.found_sets.end();
    if (there && found->second != left)
      return Broken("process set ", number, " has other workers than before");
    const bool should =
        generation.keeps_sets && before.reforms && !set.ended && set.request != 0 && !left.empty();
    if (there != should && !before.taken_up)
      return Broken("process set ", number, there ? " has come back" : " has not survived");
  }
  for (const auto& [number, ranks] : generation.found_sets) {
    if (!before.sets.contains(number)) return Broken("process set ", number, " comes from nowhere");
  }
  return absl::OkStatus();
}

}  // namespace coordd
