#include "client/coordrun/plan/host_answers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/coordrun/plan/slot_book.h"

namespace coordd {

HostAnswers::Verdict HostAnswers::Judge(const absl::StatusOr<std::vector<HostSlots>>& answer,
                                        absl::Time now, int64_t drained) {
  Verdict verdict;
  if (!answer.ok()) {
    const std::string problem(answer.status().message());
    const bool first = problem_.empty();
    if (first || (problem != problem_ && now - told_ >= kComplainsEvery)) {
      verdict.say = absl::StrCat(problem, "; ", otherwise_);
      told_ = now;
    }
    problem_ = problem;
    return verdict;
  }
  problem_.clear();
  const int64_t slots = SlotsOf(*answer);
  if (slots - drained >= least_) {
    few_since_ = absl::InfiniteFuture();
    verdict.take = true;
    return verdict;
  }
  if (few_since_ == absl::InfiniteFuture()) {
    verdict.say = absl::StrCat(
        "--host-discovery-script names ", slots, slots == 1 ? " slot" : " slots",
        drained > 0 ? absl::StrCat(", ", drained, " of them drained") : "",
        ", fewer than --min-np ", least_, ": the hosts stay as they are, unless it says so for ",
        absl::FormatDuration(kBelievedAfter));
  }
  few_since_ = std::min(few_since_, now);
  verdict.take = now - few_since_ >= kBelievedAfter;
  return verdict;
}

}  // namespace coordd
