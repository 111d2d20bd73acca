// How much the members of a job have executed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

namespace coordd {

// Not thread-safe. What is executed by schedule is not planned, and what a member has not told of
// yet may have been planned: of a generation the larger of both counts.
class ExecutedCounts {
 public:
  struct Count {
    int64_t batches = 0, bytes = 0;
  };
  // By a member of the current generation, since its process began; before it became a member
  // `others` had executed so much. The one that has told of most counts.
  void Tell(const Count& told, const std::optional<Count>& others) {
    const Count of_others = others.value_or(Count());
    told_ = Larger(told_, {told.batches + of_others.batches - before_.batches,
                           told.bytes + of_others.bytes - before_.bytes});
  }
  Count InGeneration(const Count& planned) const { return Larger(told_, planned); }
  // In the generations that are gone.
  const Count& before() const { return before_; }

  void EndGeneration(const Count& planned) {
    const Count all = InGeneration(planned);
    before_ = {before_.batches + all.batches, before_.bytes + all.bytes};
    told_ = {};
  }
  // There was more before, which was told to a coordd that is no more.
  void NoteUncounted() { has_uncounted_ = true; }
  bool has_uncounted() const { return has_uncounted_; }
  void ForgetBefore() { before_ = {}; }  // another run has the job's name now

 private:
  static Count Larger(const Count& a, const Count& b) {
    return {std::max(a.batches, b.batches), std::max(a.bytes, b.bytes)};
  }

  Count before_;
  Count told_;
  bool has_uncounted_ = false;
};

}  // namespace coordd
