// What of a job outlives coordd: a generation is stored before it is announced, and the end of the
// job after it.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/duration_text.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"
#include "server/job/job_state.h"
#include "server/model/job_record.h"
#include "server/model/validate_message.h"

namespace coordd {
namespace {

// With a disk, before those who wait hear that they wait for it.
constexpr absl::Duration kPatience = absl::Seconds(1);

}  // namespace

void JobState::Propose(const Turn& turn) {
  if (turn.now < NextLeaving()) return;
  if (!durability_.on) {
    if (const auto members = rendezvous_.TryForm(turn.now)) Form(*members, turn);
    return;
  }
  const auto sessions = rendezvous_.Propose(turn.now);
  if (!sessions.has_value()) return;
  const Generation number = rendezvous_.proposed();
  forming_.Propose(RecordOf(*sessions));
  turn.effects.persist.push_back({name_, number, {JobWrite(name_, forming_.proposed())}});
  // Mostly the answer comes in milliseconds: not worth a message to everybody.
  if (forming_.not_stored().empty()) news_.NotBefore(turn.now + kPatience);
}

v1::JobRecord JobState::RecordOf(const std::vector<SessionId>& sessions) const {
  v1::JobRecord record;
  record.set_generation(ToInt(rendezvous_.proposed()));
  record.set_running(true);
  record.set_token_hash(token_.hash());
  record.set_min_workers(rendezvous_.options().min_workers);
  record.set_max_workers(rendezvous_.options().max_workers);
  ToProto(rendezvous_.options().settling_window, record.mutable_settling_window());
  record.set_on_failure(static_cast<v1::OnFailure>(reforming_.on_failure()));
  const std::vector<v1::LaneRepair> repairs = Repairs(sessions);
  record.mutable_repairs()->Assign(repairs.begin(), repairs.end());
  std::vector<TopologyMember> members;
  members.reserve(sessions.size());
  for (SessionId session : sessions) {
    members.push_back(MemberOf(session));
  }
  const Topology topology = OrderRanks(members);
  if (v1::ProcessSets sets = NextSets(sessions, topology); sets.last_process_set() > 0)
    *record.mutable_process_sets() = std::move(sets);
  for (size_t member : topology.member_of_rank) {
    const v1::Join& join = workers_.at(sessions[member]).join;
    v1::MemberRecord* entry = record.add_members();
    entry->set_worker_id(join.worker_id());
    entry->set_hostname(join.host().hostname());
    entry->set_node_id(join.host().node_id());
    entry->set_pid(join.pid());
    entry->set_session(ToInt(sessions[member]));
    entry->set_launch(join.launch());
  }
  return record;
}

void JobState::OnPersisted(Generation number, const absl::Status& status, const Turn& turn) {
  if (status.ok()) {
    forming_.Stored();
    const auto members = rendezvous_.Confirm(number, turn.now);
    if (!members.has_value()) return;
    forming_.Formed();
    Form(*members, turn);
    return;
  }
  rendezvous_.Withdraw(number, turn.now + forming_.Failed(number, status));
  news_.Changed();
  Emit(Event::Kind::kNotStored, forming_.not_stored(), turn.effects);
}

// Nothing waits for it: who finds a job whose members do not come back ends it again.
void JobState::PersistEnd(Effects& effects) {
  if (!durability_.on) return;
  v1::JobRecord record;
  record.set_generation(ToInt(rendezvous_.proposed()));
  effects.persist.push_back({name_, Generation{0}, {JobWrite(name_, record)}});
  if (dismissals_.TakeStored()) effects.persist.back().writes.push_back(DrainWrite(name_, {}));
}

void JobState::Restore(const v1::JobRecord& record, const v1::DrainRecord& drains,
                       const Turn& turn) {
  dismissals_.Restore(!drains.drains().empty() || !drains.nodes().empty());
  if (!record.running()) return;
  drains_.Restore(drains);
  RendezvousOptions options = rendezvous_.options();
  options.min_workers = record.min_workers();
  options.max_workers = record.max_workers();
  options.max_workers_of_server = options_.max_workers_per_job;
  options.settling_window = FromProto(record.settling_window());
  options.settling_window_after_loss = options_.settling_window_after_loss;
  options.lease = options_.lease;
  rendezvous_ = RendezvousState(options, Generation{record.generation()}, turn.now);
  reforming_ = Reforming({.on_failure = FromProto(record.on_failure()),
                          .report_window = options_.lease,
                          .timeout = options_.reform_timeout,
                          .reset_limit = options_.reset_limit});
  token_.Restore(record.token_hash());
  started_ = true;
  forming_.Restore(record);
  kv_.Open(generation());
  rendezvous_.Await();
  AwaitMembers("coordd was started again", turn.now);
  Emit(Event::Kind::kJobRestored,
       absl::StrCat("known from before: generation ", record.generation(), " had ",
                    record.members_size(), " members, who have ",
                    DurationText(resume_->deadline() - turn.now), " to come back"),
       turn.effects);
}

}  // namespace coordd
