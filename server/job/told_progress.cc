#include "server/job/told_progress.h"

#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"

namespace coordd {

ToldProgress ProgressOf(const v1::Heartbeat& heartbeat, const ToldProgress& before) {
  ToldProgress progress;
  progress.collectives_completed = heartbeat.collectives_completed();
  progress.bytes_reduced = heartbeat.bytes_reduced();
  progress.comm_calls = heartbeat.comm_calls();
  progress.executes = progress.comm_calls > before.comm_calls;
  const v1::LanePosition* longest = nullptr;
  for (const v1::LanePosition& lane : heartbeat.lanes()) {
    progress.executes = progress.executes || lane.launched() > lane.completed();
    if (lane.lane() == 0 && !progress.of_all_ranks.has_value())
      progress.of_all_ranks = ToldProgress::Batches{lane.launched(), lane.completed()};
    if (lane.oldest_waiting().empty()) continue;
    if (longest == nullptr || FromProto(lane.waiting()) > FromProto(longest->waiting()))
      longest = &lane;
  }
  if (longest != nullptr) {
    progress.waiting = ToldProgress::Waiting{
        ProcessSetId{longest->lane()}, longest->oldest_waiting(), FromProto(longest->waiting())};
  }
  for (const v1::CommWait& wait : heartbeat.comm_waits()) {
    const absl::Duration since = FromProto(wait.waiting());
    if (progress.waiting.has_value() && progress.waiting->since >= since) continue;
    progress.waiting =
        ToldProgress::Waiting{ProcessSetId{wait.process_set()},
                              absl::StrCat("comm ", wait.comm(), ": ", wait.call()), since};
  }
  return progress;
}

}  // namespace coordd
