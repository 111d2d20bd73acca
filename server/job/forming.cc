#include "server/job/forming.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/base/one_line.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "common/protocol/topology.h"
#include "server/model/state_store.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// A full disk is emptied by people, a slow one in seconds.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(100);
constexpr absl::Duration kLongestRetry = absl::Seconds(10);
constexpr int32_t kDoublings = 7;  // from the first to the longest

}  // namespace

void Forming::Stored() {
  failed_writes_ = 0;
  not_stored_.clear();
}

absl::Duration Forming::Failed(Generation number, const absl::Status& status) {
  const bool passing = IsPassing(status);
  const absl::Duration wait =
      std::min(kLongestRetry, kFirstRetry * (1 << std::min(failed_writes_++, kDoublings)));
  not_stored_ = Truncated(
      OneLine(absl::StrCat("generation ", ToInt(number),
                           " was not announced, since it could not be stored: ", status.message(),
                           passing ? absl::StrCat("; tried again in ", DurationText(wait))
                                   : "; this coordd forms no generation any more")),
      kMaxReasonBytes);
  return passing ? wait : absl::InfiniteDuration();
}

v1::JobRecord RecordOf(const std::vector<SessionId>& sessions, const JobToken& token,
                       const RendezvousState& rendezvous, const Reforming& reforming,
                       const Survivors& survivors, const JobWorkers& workers) {
  const Topology topology = survivors.TopologyOf(sessions);
  Inheritance inherited = survivors.Of(sessions, topology);
  v1::JobRecord record = token.Record();
  record.set_generation(ToInt(rendezvous.proposed()));
  record.set_running(true);
  record.set_min_workers(rendezvous.options().min_workers);
  record.set_max_workers(rendezvous.options().max_workers);
  ToProto(rendezvous.options().settling_window, record.mutable_settling_window());
  record.set_on_failure(static_cast<v1::OnFailure>(reforming.on_failure()));
  record.mutable_repairs()->Assign(inherited.repairs.begin(), inherited.repairs.end());
  if (inherited.process_sets.last_process_set() > 0)
    *record.mutable_process_sets() = std::move(inherited.process_sets);
  for (size_t member : topology.member_of_rank) {
    const v1::Join& join = workers.at(sessions[member]).join;
    v1::MemberRecord* entry = record.add_members();
    entry->set_worker_id(join.worker_id());
    entry->set_hostname(join.host().hostname());
    entry->set_node_id(join.host().node_id());
    entry->set_pid(join.pid());
    entry->set_session(ToInt(sessions[member]));
    entry->set_launch(join.launch());
    if (!topology.levels.empty()) *entry->mutable_topology() = join.host().topology();
  }
  return record;
}

}  // namespace coordd
