#include "server/job/job_messages.h"

#include <map>

#include "common/base/one_line.h"
#include "common/protocol/proto_convert.h"
#include "server/job/kv_state.h"
#include "server/model/heartbeat_pace.h"
#include "server/model/validate_message.h"

namespace coordd {

std::shared_ptr<v1::CoordinatorMessage> JobMessages::New(Generation generation) const {
  auto message = std::make_shared<v1::CoordinatorMessage>();
  message->set_epoch(ToInt(epoch_));
  message->set_generation(ToInt(generation));
  return message;
}

void JobMessages::Emit(Event::Kind kind, absl::string_view text, Effects& effects,
                       v1::DepartureCause cause) const {
  Event event{.kind = kind, .job = name_};
  event.generation = ToInt(rendezvous_.generation());
  event.cause = cause;
  event.text = OneLine(text);
  effects.events.push_back(std::move(event));
}

void JobMessages::EmitDeparture(const v1::Departure& departure, absl::string_view sentence,
                                Effects& effects) const {
  Emit(Event::Kind::kWorkerDeparted, sentence, effects, departure.cause());
  effects.events.back().departed = Event::Departed{.rank = departure.rank(),
                                                   .host = OneLine(departure.hostname()),
                                                   .detail = departure.detail()};
}

GenerationIdentity JobMessages::IdentityOf(Generation number, const std::vector<SessionId>& members,
                                           const JobWorkers& workers,
                                           std::shared_ptr<ByteBudget> budget) const {
  GenerationIdentity identity{name_, epoch_, number, true, true, options_.slots, std::move(budget)};
  for (SessionId session : members) {
    const v1::Join& join = workers.at(session).join;
    identity.schedules = identity.schedules && join.executes_schedules();
    identity.device_schedules = identity.device_schedules && join.schedules_devices();
    if (!join.knows_slots()) identity.slots = 0;
  }
  return identity;
}

void JobMessages::Membership(SessionId to, const Place& place, const Topology& topology,
                             const v1::JobRecord& record, const FoundSets& found, int64_t slots,
                             Effects& effects) const {
  const Generation generation = rendezvous_.generation();
  std::shared_ptr<v1::CoordinatorMessage> message = New(generation);
  v1::Membership* membership = message->mutable_membership();
  *membership->mutable_repairs() = record.repairs();
  membership->set_process_sets_follow(!found.empty());
  membership->set_rank(ToInt(place.rank));
  membership->set_size(place.size);
  membership->set_local_rank(place.local_rank);
  membership->set_local_size(place.local_size);
  membership->set_cross_rank(place.cross_rank);
  membership->set_cross_size(place.cross_size);
  for (const NodeRun& run : topology.runs) {
    v1::NodeRun* node_run = membership->add_nodes();
    node_run->set_nodes(run.nodes);
    node_run->set_ranks_per_node(run.ranks_per_node);
  }
  for (const TopologyLevel& level : topology.levels) {
    v1::TopologyLevel* told = membership->add_topology();
    for (const DomainRun& run : level) {
      v1::DomainRun* domains = told->add_runs();
      domains->set_first(run.first);
      domains->set_domains(run.domains);
      domains->set_nodes_per_domain(run.nodes_per_domain);
    }
  }
  membership->set_session(ToInt(to));
  ToProto(HeartbeatInterval(options_, place.size), membership->mutable_heartbeat_interval());
  ToProto(options_.lease, membership->mutable_lease());
  membership->set_store_prefix(KvState::GenerationPrefix(generation));
  membership->set_job_min_workers(rendezvous_.options().min_workers);
  membership->set_job_max_workers(rendezvous_.options().max_workers);
  membership->set_slots(slots);
  membership->set_named_sets(true);
  if (durability_.outlives) membership->set_cluster_id(durability_.cluster_id);
  effects.outgoing.push_back(Deliver{{to}, std::move(message)});
}

void JobMessages::Resumed(SessionId to, const ResumedGeneration& resumed,
                          const GenerationState& state, Effects& effects) const {
  std::shared_ptr<v1::CoordinatorMessage> message = New(rendezvous_.generation());
  v1::Resumed& told = *message->mutable_resumed();
  told.set_session(ToInt(to));
  const auto members = static_cast<int32_t>(resumed.missed.size());
  ToProto(HeartbeatInterval(options_, members), told.mutable_heartbeat_interval());
  ToProto(options_.lease, told.mutable_lease());
  told.set_slots(state.identity().slots);
  told.set_wants_schedule_finished(state.wants_schedule_finished());
  for (const ResumedGeneration::Removal& removal : resumed.removals)
    told.add_open_ends(removal.position);
  effects.outgoing.push_back(Deliver{{to}, std::move(message)});
}

std::shared_ptr<v1::CoordinatorMessage> JobMessages::LeaseAck(Generation generation,
                                                              const v1::Heartbeat& heartbeat,
                                                              absl::Time now) const {
  std::shared_ptr<v1::CoordinatorMessage> ack = New(generation);
  ack->mutable_lease_ack()->set_echoed_sent_ns(heartbeat.sent_ns());
  ToProto(options_.lease, ack->mutable_lease_ack()->mutable_lease());
  ack->mutable_lease_ack()->set_coordd_ns(absl::ToUnixNanos(now));
  return ack;
}

void JobMessages::Waiting(std::vector<SessionId> to, const std::string& reason,
                          Effects& effects) const {
  std::shared_ptr<v1::CoordinatorMessage> message = New(Generation{0});
  v1::Waiting* told = message->mutable_waiting();
  told->set_joined(rendezvous_.waiting());
  told->set_min_workers(rendezvous_.options().min_workers);
  told->set_max_workers(rendezvous_.options().max_workers);
  told->set_reason(reason);
  effects.outgoing.push_back(Deliver{std::move(to), std::move(message)});
}

void JobMessages::Newcomers(std::vector<SessionId> to, Effects& effects) const {
  std::shared_ptr<v1::CoordinatorMessage> message = New(rendezvous_.generation());
  message->mutable_newcomers()->set_waiting(rendezvous_.waiting());
  effects.outgoing.push_back(Deliver{std::move(to), std::move(message)});
}

void JobMessages::AskToLeave(SessionId to, Generation generation, const Drain& drain,
                             const Turn& turn) const {
  std::shared_ptr<v1::CoordinatorMessage> message = New(generation);
  v1::DrainNotice* notice = message->mutable_drain_notice();
  ToProto(drain.until - turn.now, notice->mutable_grace());
  notice->set_asked_by(drain.asked_by);
  turn.effects.outgoing.push_back(Deliver{{to}, std::move(message)});
}

void JobMessages::MayStay(SessionId to, Generation generation, Effects& effects) const {
  std::shared_ptr<v1::CoordinatorMessage> message = New(generation);
  message->mutable_drain_notice()->set_lifted(true);
  effects.outgoing.push_back(Deliver{{to}, std::move(message)});
}

void JobMessages::Shutdown(const JobWorkers& workers, const StopRequested& stop, bool returns,
                           Effects& effects) const {
  std::map<Generation, std::vector<SessionId>> sessions;
  for (const auto& [session, worker] : workers) sessions[worker.generation].push_back(session);
  for (const auto& [generation, to] : sessions) {
    std::shared_ptr<v1::CoordinatorMessage> message = New(generation);
    message->mutable_shutdown()->set_reason(stop.reason);
    if (returns) ToProto(stop.resume_within, message->mutable_shutdown()->mutable_resume_within());
    effects.outgoing.push_back(Deliver{to, std::move(message)});
  }
}

}  // namespace coordd
