// What is made of the answers of a --host-discovery-script, one after the other. PURE
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/launch/host_list.h"

namespace coordd {

// The workers of a host that an answer leaves out are asked to leave. A batch system that is slow,
// or a script that cannot reach it, often answers with nothing and status 0: where the run could
// not go on with what is left, the script has to say so for this long.
inline constexpr absl::Duration kBelievedAfter = absl::Seconds(10);
// A script whose complaint differs each time (it has the time of day in it) is told so often.
inline constexpr absl::Duration kComplainsEvery = absl::Minutes(1);

// Not thread-safe: one owner. `now` must not decrease.
class HostAnswers {
 public:
  // `least`: slots without which the run cannot go on, --min-np. `otherwise`: what follows from an
  // answer that is refused.
  explicit HostAnswers(int32_t least, std::string otherwise = "the hosts stay as they are")
      : least_(least), otherwise_(std::move(otherwise)) {}

  struct Verdict {
    bool take = false;  // the hosts are as the answer has them; else they stay as they are
    std::string say;    // for people; empty: nothing
  };
  // `drained`: slots of the answer in which nobody is started, since who was there was asked to
  // leave.
  Verdict Judge(const absl::StatusOr<std::vector<HostSlots>>& answer, absl::Time now,
                int64_t drained = 0);

 private:
  const int32_t least_;
  const std::string otherwise_;
  absl::Time few_since_ = absl::InfiniteFuture();  // the answers since then had too few slots
  std::string problem_;                            // of the last answer; empty: none
  absl::Time told_ = absl::InfinitePast();         // when a problem was told last
};

}  // namespace coordd
