// Members of a generation that goes on are told what others have heard and they have not.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/resume_merge.h"
#include "server/model/effects.h"

namespace coordd {

// PURE. Not thread-safe. Over turns, since it may be a quarter of a million messages. Each is said
// once, to all who lack it, in the order of their positions.
class MissedTelling {
 public:
  // `by_rank`: whom to tell; 0: nobody in its place. `head`: of the messages, which outlives it as
  // `missed` does, out of which it takes what it tells.
  MissedTelling(MissedMessages& missed, std::vector<SessionId> by_rank,
                const v1::CoordinatorMessage& head);

  // Tells of about so many entries more (ReportMerge's); whether that was all.
  bool Continue(int64_t entries, Effects& effects);
  bool has_told() const { return has_told_; }

 private:
  // The next message of a rank, by position; the first is the one to be told.
  using Next = std::pair<int64_t, size_t>;

  void Await(size_t rank);
  int64_t TellNext(Effects& effects);

  MissedMessages& missed_;
  const std::vector<SessionId> by_rank_;
  const v1::CoordinatorMessage& head_;
  std::vector<size_t> told_;  // so many of a rank's
  std::vector<Next> next_;    // a heap of those who lack something yet
  bool has_told_ = false;
};

}  // namespace coordd
