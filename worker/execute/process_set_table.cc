#include "worker/execute/process_set_table.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {

void ProcessSetTable::Define(ProcessSetId process_set, RankList ranks) {
  MutexLock lock(&mu_);
  sets_[process_set] = std::move(ranks);
  ended_.erase(process_set);  // numbers of sets that do not survive come again
}

void ProcessSetTable::End(ProcessSetId process_set) {
  MutexLock lock(&mu_);
  sets_.erase(process_set);
}

void ProcessSetTable::Replace(std::map<ProcessSetId, RankList> sets, bool survive) {
  const char* const why = survive ? "since none of its ranks is left"
                                  : "with its generation, since coordd or another worker is older";
  MutexLock lock(&mu_);
  sets_.swap(sets);
  for (const auto& [number, ranks] : sets)
    if (!sets_.contains(number)) ended_[number] = why;
}

absl::Status ProcessSetTable::NoSuchSet(ProcessSetId process_set) const {
  MutexLock lock(&mu_);
  const auto ended = ended_.find(process_set);
  if (ended != ended_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("process set ", ToInt(process_set), ": has ended, ", ended->second));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("process set ", ToInt(process_set),
                   ": does not exist, expected one that was added and not removed"));
}

std::vector<ProcessSetId> ProcessSetTable::Numbers() const {
  MutexLock lock(&mu_);
  std::vector<ProcessSetId> numbers;
  numbers.reserve(sets_.size());
  for (const auto& [number, ranks] : sets_) numbers.push_back(number);
  return numbers;
}

RankList ProcessSetTable::Find(ProcessSetId process_set) const {
  MutexLock lock(&mu_);
  const auto found = sets_.find(process_set);
  return found == sets_.end() ? nullptr : found->second;
}

}  // namespace coordd
