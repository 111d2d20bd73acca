// The process sets that a generation leaves to the one that follows it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/process_sets.h"
#include "server/model/graveyard.h"

namespace coordd {

// PURE. Not thread-safe. A copy looks at the same sets, from their beginning on: they are not
// copied, since a job may have a hundred thousand, and do not change.
class SetsLeft {
 public:
  struct Set {
    ProcessSetId id;
    std::vector<Rank> ranks;  // as they were
  };

  SetsLeft() = default;  // none
  // As coordd knows them. `ended`: of the end of these some have heard, and others have not asked
  // for it yet.
  SetsLeft(std::shared_ptr<ProcessSets> sets, std::vector<ProcessSetId> ended);
  // As survivors have said them: who has heard most of it, but for those of whose end another one
  // has heard (ResumedGeneration::Removal), which knows the number, and no such set. REQUIRES: each
  // is valid (common/protocol/process_set_parts.h).
  explicit SetsLeft(std::vector<std::shared_ptr<const v1::ProcessSets>> said);

  // The highest number that one of them, or one that has ended, has had. 0: there was none.
  ProcessSetId last() const { return last_; }

  // How far somebody has come who looks at them in order.
  class Walk {
   public:
    // The next one. Each that is looked at takes some of `entries`. nullopt: none is left, and then
    // done(), or no entry.
    std::optional<Set> Next(const SetsLeft& of, int64_t& entries);
    bool done() const { return done_; }

   private:
    std::optional<Set> NextKnown(const SetsLeft& of, int64_t& entries);
    std::optional<Set> NextSaid(const SetsLeft& of, int64_t& entries);
    bool IsEnded(const SetsLeft& of, int32_t id, int64_t& entries);

    int32_t next_ = 0;          // the number, or the place in what was said
    std::vector<int> reached_;  // in what each of the others has said
    bool done_ = false;
  };

  // What is known of them, which nobody is to look at any more, to be freed in parts; null: nothing
  // large.
  std::unique_ptr<Remains> Bury();

 private:
  std::shared_ptr<ProcessSets> known_;
  std::vector<ProcessSetId> ended_;  // in order
  // Who has heard most is first; none of them is there twice.
  std::vector<std::shared_ptr<const v1::ProcessSets>> said_;
  ProcessSetId last_{0};
};

}  // namespace coordd
