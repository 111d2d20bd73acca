#include "tests/server/support/effects_text.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/protocol/proto_convert.h"

namespace coordd {
namespace {

std::string Quoted(absl::string_view text) { return absl::StrCat("\"", text, "\""); }

std::string CauseName(v1::DepartureCause cause) {
  return v1::DepartureCause_Name(cause).substr(sizeof("DEPARTURE_CAUSE_") - 1);
}

std::string ToText(const v1::Membership& m) {
  std::vector<std::string> runs;
  for (const v1::NodeRun& run : m.nodes()) {
    runs.push_back(absl::StrCat(run.nodes(), "x", run.ranks_per_node()));
  }
  std::string topology;
  for (const v1::TopologyLevel& level : m.topology()) {
    for (const v1::DomainRun& run : level.runs()) {
      absl::StrAppend(&topology, &run == &level.runs(0) ? " level=" : "+", run.domains(), "x",
                      run.nodes_per_domain());
      if (run.first() > 0) absl::StrAppend(&topology, "@", run.first());
    }
  }
  return absl::StrCat("membership rank=", m.rank(), "/", m.size(), " local=", m.local_rank(), "/",
                      m.local_size(), " cross=", m.cross_rank(), "/", m.cross_size(),
                      " nodes=", absl::StrJoin(runs, "+"), topology, " store=", m.store_prefix(),
                      " lease=", absl::FormatDuration(FromProto(m.lease())));
}

std::string ToText(const v1::CollectivePlan& plan) {
  std::string text = "plan";
  for (const v1::FusedBatch& batch : plan.batches()) {
    absl::StrAppend(&text, " ");
    if (batch.process_set() != 0) absl::StrAppend(&text, "set", batch.process_set(), ":");
    absl::StrAppend(&text, batch.sequence(), "{", absl::StrJoin(batch.tensors(), " "),
                    batch.slots().empty() ? "" : "#", absl::StrJoin(batch.slots(), " #"), "}");
    if (batch.staged()) absl::StrAppend(&text, " staged");
    if (batch.lane() != batch.process_set()) absl::StrAppend(&text, " lane ", batch.lane());
    for (const v1::TensorSpec& proto : batch.specs()) {
      const auto spec = FromProto(proto);
      absl::StrAppend(&text, " (", spec.ok() ? ToString(*spec) : spec.status().message(), ")");
    }
    if (batch.tensors_size() == 1 && batch.tensors(0) == "join") {
      absl::StrAppend(&text, " last=", batch.last_joined_rank());
    }
  }
  for (const v1::SlotBinding& binding : plan.bindings())
    absl::StrAppend(&text, " #", binding.slot(), "=", binding.name());
  return text;
}

std::string ToText(const v1::ProcessSetChange& change) {
  const std::string request = !change.name().empty()  ? absl::StrCat("named ", change.name())
                              : change.request() == 0 ? "pair"
                                                      : absl::StrCat("request ", change.request());
  if (change.code() != 0) {
    return absl::StrCat(request, " ",
                        absl::StatusCodeToString(static_cast<absl::StatusCode>(change.code())), " ",
                        Quoted(change.message()));
  }
  if (change.ranks().empty()) return absl::StrCat(request, ": set", change.process_set(), " ends");
  return absl::StrCat(request, ": set", change.process_set(), " is ",
                      absl::StrJoin(change.ranks(), ","));
}

std::string ToText(const v1::Abort& abort) {
  std::string text = absl::StrCat(
      "abort", abort.in_flight() ? " in_flight " : " ", abort.reforms() ? "reforms " : "",
      abort.report_process_sets() ? "report_sets " : "", Quoted(abort.reason()));
  for (const v1::Departure& departure : abort.departures()) {
    absl::StrAppend(&text, " departed=", departure.rank(), ":", CauseName(departure.cause()));
  }
  return text;
}

std::string ToText(const v1::TensorFailures& failures) {
  std::string text = "failures";
  for (const v1::TensorFailure& failure : failures.failures()) {
    absl::StrAppend(&text, " ", failure.name(),
                    failure.process_set() == 0 ? "" : absl::StrCat("@set", failure.process_set()),
                    " ", absl::StatusCodeToString(static_cast<absl::StatusCode>(failure.code())),
                    failure.rank() >= 0 ? absl::StrCat(" rank=", failure.rank()) : "", " ",
                    Quoted(failure.message()));
  }
  return text;
}

std::string ToText(const v1::ProcessSets& sets) {
  std::string text = "process_sets";
  for (const v1::ProcessSet& set : sets.sets())
    absl::StrAppend(&text, " ", set.process_set(), "=[", absl::StrJoin(set.ranks(), " "), "]");
  return absl::StrCat(text, " last=", sets.last_process_set(), sets.more() ? " …" : "");
}

std::string ToText(const v1::Schedule& schedule) {
  std::string text = absl::StrCat("schedule ", schedule.id(), " lane=", schedule.lane());
  if (schedule.process_set() != 0) absl::StrAppend(&text, "@set", schedule.process_set());
  for (const v1::ScheduledBatch& batch : schedule.batches()) {
    std::vector<std::string> names;
    for (const v1::TensorSpec& tensor : batch.tensors()) names.push_back(tensor.name());
    absl::StrAppend(&text, " [", absl::StrJoin(names, " "), "]");
  }
  return absl::StrCat(text, schedule.more() ? " …" : "");
}

std::string ToText(const v1::Trace& trace) {
  switch (trace.action()) {
    case v1::TRACE_ACTION_BEGIN:
      return absl::StrCat("trace ", trace.id(), " begin lane=", trace.lane(),
                          " bytes_max=", trace.bytes_max());
    case v1::TRACE_ACTION_UNTIL:
      return absl::StrCat("trace ", trace.id(), " cycles ", trace.from_cycle(), " to ",
                          trace.until_cycle());
    default:
      return absl::StrCat("trace ", trace.id(), " end");
  }
}

std::string ToText(const TraceAnswer& answer, const EffectNames& names) {
  std::string text = absl::StrCat("traced ", names.call(answer.call), " ",
                                  absl::StatusCodeToString(answer.status.code()));
  if (!answer.status.ok()) return absl::StrCat(text, " ", Quoted(answer.status.message()));
  absl::StrAppend(&text, " steps=", answer.reply.steps());
  for (const v1::TraceRank& rank : answer.reply.ranks()) {
    absl::StrAppend(&text, " ", rank.rank(), ":", absl::StrJoin(rank.batches(), "+"));
    if (rank.dropped() > 0) absl::StrAppend(&text, " dropped=", rank.dropped());
    if (!rank.missing().empty()) absl::StrAppend(&text, " missing=", Quoted(rank.missing()));
  }
  if (!answer.reply.note().empty()) absl::StrAppend(&text, " note=", Quoted(answer.reply.note()));
  return text;
}

constexpr const char* kEventNames[] = {
    "job_created",     "job_ended",         "worker_joined",    "join_refused",
    "worker_departed", "generation_formed", "generation_ended", "tensors_planned",
    "tensor_failed",   "stall_began",       "stall_ended",      "set_changed",
    "set_refused",     "rank_joined",       "schedule_began",   "schedule_broken",
    "traced",          "protocol_error",    "stale_message",    "job_resumed",
    "job_restored",    "not_stored",        "asleep",           "process_ended",
    "drain_began",     "drain_lifted",      "rank_stuck",       "state_lost",
    "failure_reported"};

}  // namespace

std::string ToText(const v1::CoordinatorMessage& message) {
  const std::string generation = absl::StrCat(" gen=", message.generation());
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kMembership:
      return ToText(message.membership()) + generation;
    case v1::CoordinatorMessage::kPlan:
      return ToText(message.plan());
    case v1::CoordinatorMessage::kAbort:
      return ToText(message.abort()) + generation;
    case v1::CoordinatorMessage::kLeaseAck:
      return absl::StrCat("lease_ack ", message.lease_ack().echoed_sent_ns(),
                          message.lease_ack().wants_stack() ? " wants_stack" : "", generation);
    case v1::CoordinatorMessage::kTensorFailures:
      return ToText(message.tensor_failures());
    case v1::CoordinatorMessage::kWaiting:
      return absl::StrCat(
          "waiting joined=", message.waiting().joined(), " min=", message.waiting().min_workers(),
          " max=", message.waiting().max_workers(), " ", Quoted(message.waiting().reason()));
    case v1::CoordinatorMessage::kNewcomers:
      return absl::StrCat("newcomers ", message.newcomers().waiting());
    case v1::CoordinatorMessage::kShutdown:
      return absl::StrCat("shutdown ", Quoted(message.shutdown().reason()), generation);
    case v1::CoordinatorMessage::kProcessSetChange:
      return ToText(message.process_set_change());
    case v1::CoordinatorMessage::kProcessSets:
      return ToText(message.process_sets()) + generation;
    case v1::CoordinatorMessage::kSchedule:
      return ToText(message.schedule());
    case v1::CoordinatorMessage::kFreeze:
      return absl::StrCat("freeze schedule ", message.freeze().id());
    case v1::CoordinatorMessage::kCut:
      return absl::StrCat("cut schedule ", message.cut().id(), " at ", message.cut().position());
    case v1::CoordinatorMessage::kTrace:
      return ToText(message.trace());
    case v1::CoordinatorMessage::kDrainNotice:
      if (message.drain_notice().lifted()) return "drain lifted";
      return absl::StrCat("drain within ",
                          absl::FormatDuration(FromProto(message.drain_notice().grace())), " by ",
                          Quoted(message.drain_notice().asked_by()));
    case v1::CoordinatorMessage::kResumed:
      return absl::StrCat("resumed", generation);
    case v1::CoordinatorMessage::BODY_NOT_SET:
      break;
  }
  return "nothing";
}

std::string ToText(const Event& event) {
  std::string text = absl::StrCat("event ", kEventNames[static_cast<size_t>(event.kind)]);
  if (event.cause != v1::DEPARTURE_CAUSE_UNSPECIFIED) {
    absl::StrAppend(&text, " ", CauseName(event.cause));
  }
  if (event.code != absl::StatusCode::kOk) {
    absl::StrAppend(&text, " ", absl::StatusCodeToString(event.code));
  }
  return absl::StrCat(text, " ", Quoted(event.text));
}

std::string ToText(const Outgoing& out, const EffectNames& names) {
  if (const auto* deliver = std::get_if<Deliver>(&out)) {
    std::vector<std::string> to;
    for (SessionId session : deliver->to) to.push_back(names.session(session));
    return absl::StrCat("to ", absl::StrJoin(to, ","), ": ", ToText(*deliver->message));
  }
  if (const auto* close = std::get_if<CloseSession>(&out)) {
    return absl::StrCat("close ", names.session(close->session), " ",
                        absl::StatusCodeToString(close->status.code()),
                        close->status.ok() ? "" : " " + Quoted(close->status.message()));
  }
  if (const auto* answer = std::get_if<TraceAnswer>(&out)) return ToText(*answer, names);
  if (const auto* answer = std::get_if<ExitsAnswer>(&out)) {
    return absl::StrCat("told ", names.call(answer->call), " ",
                        absl::StatusCodeToString(answer->status.code()),
                        answer->status.ok() ? absl::StrCat(" known=", answer->known)
                                            : " " + Quoted(answer->status.message()));
  }
  if (const auto* answer = std::get_if<DismissAnswer>(&out)) {
    std::string text = absl::StrCat("told ", names.call(answer->call), " ",
                                    absl::StatusCodeToString(answer->status.code()));
    if (!answer->status.ok()) return absl::StrCat(text, " ", Quoted(answer->status.message()));
    for (const v1::DismissedWorker& worker : answer->reply.workers())
      absl::StrAppend(&text, " ", worker.worker_id(), "=", worker.rank());
    return text;
  }
  const auto& reply = std::get<StoreReply>(out);
  std::string text = absl::StrCat("reply ", names.call(reply.call), " ",
                                  absl::StatusCodeToString(reply.status.code()));
  if (!reply.status.ok()) return absl::StrCat(text, " ", Quoted(reply.status.message()));
  if (!reply.value.empty()) absl::StrAppend(&text, " value=", reply.value);
  if (reply.shared != nullptr) absl::StrAppend(&text, " value=", *reply.shared);
  if (reply.number != 0) absl::StrAppend(&text, " number=", reply.number);
  return text;
}

std::vector<std::string> ToText(const v1::JobState& job) {
  std::vector<std::string> lines;
  lines.push_back(absl::StrCat(
      "job ", job.name(), " ", v1::JobPhase_Name(job.phase()).substr(sizeof("JOB_PHASE_") - 1),
      " gen=", job.generation(), " size=", job.size(), " joined=", job.joined(), " pending=",
      job.pending_tensors(), " batches=", job.batches_planned(), " tensors=", job.tensors_planned(),
      " bytes=", job.bytes_planned(), " keys=", job.store_keys(),
      job.process_sets() + job.pairs() == 0
          ? ""
          : absl::StrCat(" sets=", job.process_sets(), " pairs=", job.pairs()),
      job.slowest_rank() < 0 ? "" : absl::StrCat(" slowest=", job.slowest_rank()),
      job.joined_count() == 0 ? "" : " has_joined=" + absl::StrJoin(job.joined_ranks(), ",")));
  for (const v1::WorkerState& worker : job.workers()) {
    lines.push_back(absl::StrCat("  rank ", worker.rank(), " ", worker.worker_id(), " on ",
                                 worker.node_id(), ": ", worker.activity()));
  }
  for (const v1::StalledTensor& tensor : job.stalled()) {
    const std::string set =
        tensor.process_set() == 0 ? "" : absl::StrCat("@set", tensor.process_set());
    lines.push_back(absl::StrCat("  stalled ", tensor.name(), set, " ", tensor.waiting_seconds(),
                                 "s in=", absl::StrJoin(tensor.ready_ranks(), ","),
                                 " missing=", absl::StrJoin(tensor.missing_ranks(), ",")));
  }
  for (const v1::Departure& departure : job.departures()) {
    lines.push_back(absl::StrCat("  departed ", departure.worker_id(), " ",
                                 CauseName(departure.cause()),
                                 departure.drained() ? " drained" : ""));
  }
  return lines;
}

}  // namespace coordd
