#include "server/job/forming.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/counted.h"
#include "common/base/duration_text.h"
#include "common/base/one_line.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
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

void Forming::Restore(const v1::JobRecord& record, const v1::CoordinatorMessage& head) {
  record_ = record;
  found_ = std::make_shared<const FoundSets>(head, record_.process_sets());
  record_.clear_process_sets();
}

void Forming::Propose(std::unique_ptr<NextGeneration> next, const Turn& turn) {
  Abandon(turn);
  next_ = std::move(next);
}

std::unique_ptr<NextGeneration> Forming::Take(Generation number) {
  return next_ != nullptr && next_->number() == number ? std::move(next_) : nullptr;
}

void Forming::Abandon(const Turn& turn) {
  if (next_ != nullptr) next_->Bury(turn);
  next_ = nullptr;
}

void Forming::Formed(const NextGeneration& formed, const Turn& turn) {
  record_ = formed.record();
  turn.Bury(FoundSets::Bury(std::exchange(found_, formed.found())));
}

std::unique_ptr<NextGeneration> NextOf(const std::vector<SessionId>& sessions,
                                       const JobToken& token, const RendezvousState& rendezvous,
                                       const Reforming& reforming, const Survivors& survivors,
                                       const JobWorkers& workers, const JobMessages& messages,
                                       const ServerOptions& options) {
  const Topology topology = survivors.TopologyOf(sessions);
  const std::vector<v1::LaneRepair> repairs = survivors.Repairs(sessions);
  v1::JobRecord record = token.Record();
  record.set_generation(ToInt(rendezvous.proposed()));
  record.set_running(true);
  record.set_min_workers(rendezvous.options().min_workers);
  record.set_max_workers(rendezvous.options().max_workers);
  ToProto(rendezvous.options().settling_window, record.mutable_settling_window());
  record.set_on_failure(static_cast<v1::OnFailure>(reforming.on_failure()));
  record.mutable_repairs()->Assign(repairs.begin(), repairs.end());
  std::vector<SessionId> by_rank;
  by_rank.reserve(sessions.size());
  for (size_t member : topology.member_of_rank) {
    by_rank.push_back(sessions[member]);
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
  std::vector<Rank> moved = survivors.Moved(by_rank);
  GenerationIdentity identity =
      messages.IdentityOf(rendezvous.proposed(), by_rank, workers, token.budget());
  auto state = std::make_shared<GenerationState>(std::move(identity), options, std::move(by_rank));
  return std::make_unique<NextGeneration>(std::move(record), *messages.New(rendezvous.proposed()),
                                          survivors.Left(sessions), std::move(moved),
                                          std::move(state));
}

std::string FormedText(Generation number, const Topology& topology) {
  int32_t nodes = 0;
  for (const NodeRun& run : topology.runs) nodes += run.nodes;
  return absl::StrCat("generation ", ToInt(number),
                      " formed: ", Counted(static_cast<int64_t>(topology.places.size()), "rank"),
                      " on ", Counted(nodes, "node"));
}

}  // namespace coordd
