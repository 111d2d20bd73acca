// The process sets that callers may submit to.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/protocol/types.h"

namespace coordd {

// Ranks of a set in their order; nullptr: all ranks of the job.
using RankList = std::shared_ptr<const std::vector<int32_t>>;

// Thread-safe: the control thread writes what coordd says, callers read.
class ProcessSetTable {
 public:
  void Define(ProcessSetId process_set, RankList ranks);
  void End(ProcessSetId process_set);
  // Replaces the sets by those of the next generation. Others have ended with the last of their
  // ranks; or, unless `survive`, with their generation.
  void Replace(std::map<ProcessSetId, RankList> sets, bool survive);
  // nullptr: there is no such set. Not for set 0.
  RankList Find(ProcessSetId process_set) const;
  absl::Status NoSuchSet(ProcessSetId process_set) const;  // what to say then
  std::vector<ProcessSetId> Numbers() const;               // without 0, in order

 private:
  // Guarded by mu_.
  mutable Mutex mu_;
  std::map<ProcessSetId, RankList> sets_ ABSL_GUARDED_BY(mu_);
  std::map<ProcessSetId, const char*> ended_ ABSL_GUARDED_BY(mu_);  // before this one: why
};

}  // namespace coordd
