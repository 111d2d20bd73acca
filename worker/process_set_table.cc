#include "worker/process_set_table.h"

#include <utility>

namespace coordd {

void ProcessSetTable::Define(ProcessSetId process_set, RankList ranks) {
  MutexLock lock(&mu_);
  sets_[process_set] = std::move(ranks);
}

void ProcessSetTable::End(ProcessSetId process_set) {
  MutexLock lock(&mu_);
  sets_.erase(process_set);
}

void ProcessSetTable::Clear() {
  MutexLock lock(&mu_);
  sets_.clear();
}

RankList ProcessSetTable::Find(ProcessSetId process_set) const {
  MutexLock lock(&mu_);
  const auto found = sets_.find(process_set);
  return found == sets_.end() ? nullptr : found->second;
}

}  // namespace coordd
