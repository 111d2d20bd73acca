#include "tests/server/support/random_messages.h"

#include "absl/strings/str_cat.h"
#include "common/protocol/protocol_bounds.h"
#include "tests/server/support/builders.h"

namespace coordd {

v1::WorkerMessage RandomMessages::Join() {
  v1::WorkerMessage message;
  v1::Join* join = message.mutable_join();
  // One draw after the other, so that a seed is one history whoever has compiled this.
  const std::string id = absl::StrCat("w", Below(12));
  *join = JoinOf(id, absl::StrCat("n", Below(3)));
  const uint64_t job = Below(4);
  join->set_job(Below(30) == 0 ? "?" : absl::StrCat("job", job));
  if (Below(20) == 0) join->set_token("wrong");
  if (calm_) {
    join->mutable_limits()->set_min_workers(static_cast<int32_t>(job) + 1);
    join->mutable_limits()->set_max_workers(static_cast<int32_t>(job) + 1);
  } else if (Below(2) == 0) {
    join->mutable_limits()->set_min_workers(static_cast<int32_t>(Below(4)));
  }
  // In two of the four jobs survivors go on.
  join->set_on_failure(job < 2 ? v1::ON_FAILURE_UNSPECIFIED : v1::ON_FAILURE_RAISE);
  if (Below(30) == 0) join->set_on_failure(v1::ON_FAILURE_END);
  if (Below(20) == 0) join->mutable_versions()->set_protocol(9);
  if (Below(20) == 0) join->mutable_host()->add_topology("rack");
  if (Below(20) == 0) join->mutable_resume();
  join->set_traces(Below(8) > 0);
  join->set_drains(Below(8) > 0);
  join->set_knows_slots(Below(12) > 0);
  join->set_knows_topology(Below(12) > 0);
  join->set_executes_schedules(Below(12) > 0);
  join->set_schedules_devices(Below(12) > 0);
  if (Below(2) == 0) join->set_launch(absl::StrCat("launch", Below(12)));
  if (Below(10) == 0) {
    v1::Device* device = join->add_devices();
    device->set_kind(v1::MEMORY_KIND_CUDA);
    device->set_uuid(absl::StrCat("GPU-", Below(3)));
  }
  return message;
}

v1::WorkerMessage RandomMessages::Body() {
  v1::WorkerMessage message;
  if (Below(60) == 0) {
    v1::RecoveryReport* report = message.mutable_recovery_report();
    report->add_lanes()->set_launched(static_cast<int64_t>(Below(3)));
    *report->mutable_process_sets() = ProcessSetsOf({{1, {static_cast<int32_t>(Below(4))}}}, 1);
    report->mutable_process_sets()->set_more(Below(2) == 0);
    return message;
  }
  if (Below(calm_ ? 600 : 60) == 0) {
    message.mutable_change_members();
    return message;
  }
  if (Below(calm_ ? 600 : 60) == 0) {
    ToProto(absl::Seconds(static_cast<int64_t>(Below(4)) - (Below(20) == 0 ? 4 : 0)),
            message.mutable_drain_request()->mutable_grace());
    return message;
  }
  if (!calm_ || Below(20) == 0) return RareBody();
  message.mutable_heartbeat()->set_bytes_reduced(static_cast<int64_t>(Below(1000)));
  return message;
}

v1::WorkerMessage RandomMessages::OfSchedule(KnownWorker& sender) {
  v1::WorkerMessage message;
  const bool wrong = Below(calm_ ? 400 : 20) == 0;
  if (!wrong && sender.schedules.empty()) {
    message.mutable_heartbeat();
    return message;
  }
  KnownWorker::Schedule stray{static_cast<int64_t>(Below(5)) - 1, Below(2) == 0, Below(2) == 0,
                              Below(2) == 0};
  KnownWorker::Schedule& schedule =
      wrong ? stray : sender.schedules[Below(sender.schedules.size())];
  if (!schedule.acknowledged) {
    schedule.acknowledged = true;
    message.mutable_schedule_ack()->set_id(schedule.id);
  } else if (schedule.cut) {
    message.mutable_schedule_finished()->set_id(schedule.id);
    std::erase_if(sender.schedules, [&](const auto& one) { return &one == &schedule; });
  } else if (schedule.frozen) {
    schedule.frozen = false;
    message.mutable_freeze_reply()->set_id(schedule.id);
    message.mutable_freeze_reply()->set_launched(static_cast<int64_t>(Below(50)) -
                                                 (wrong ? 10 : 0));
    message.mutable_freeze_reply()->set_join_follows(wrong);
  } else if (wrong || Below(4) == 0) {
    message.mutable_schedule_break()->set_id(schedule.id);
    message.mutable_schedule_break()->set_reason("another shape");
  } else {
    message.mutable_heartbeat()->add_lanes()->set_lane(kFirstScheduleLane +
                                                       static_cast<int32_t>(schedule.id) - 1);
    message.mutable_heartbeat()->mutable_lanes(0)->set_launched(static_cast<int64_t>(Below(50)));
  }
  return message;
}

v1::WorkerMessage RandomMessages::RareBody() {
  v1::WorkerMessage message;
  switch (Below(40)) {
    case 0:
      break;  // no body
    case 1:
      message.mutable_collective_failed()->set_suspect_rank(static_cast<int32_t>(Below(5)) - 1);
      break;
    case 2:
      message.mutable_leave()->set_reason(std::string(Below(2) * 1025, 'x'));
      break;
    case 3:
      message.mutable_leave()->set_drained(Below(2) == 0);
      break;
    case 4:
    case 5:
    case 6:
      message.mutable_tensors_withdrawn()->add_names(Below(6) == 0 ? "join"
                                                                   : absl::StrCat("t", Below(9)));
      message.mutable_tensors_withdrawn()->set_process_set(SomeSet());
      break;
    case 7:
    case 8: {
      v1::TraceChunk* chunk = message.mutable_trace_chunk();
      chunk->set_id(static_cast<int64_t>(Below(4)));
      chunk->set_begun(Below(2) == 0);
      chunk->set_cycles(static_cast<int64_t>(Below(4)) - (Below(20) == 0 ? 4 : 0));
      chunk->set_batches("x");
      chunk->set_last(Below(2) == 0);
      break;
    }
    default:
      message.mutable_heartbeat()->set_bytes_reduced(static_cast<int64_t>(Below(1000)));
  }
  return message;
}

// What belongs to a number is the same on all ranks, most of the time.
TensorSpec RandomMessages::SpecOf(uint64_t number, const KnownWorker& sender) {
  TensorSpec spec = Gradient(absl::StrCat("t", number), {static_cast<int64_t>(number) + 1});
  spec.process_set = ProcessSetId{SomeSet()};
  if (number == 4 || number == 5) spec.memory = MemoryKind::kCuda;
  if (number == 5) spec.shape = {20000};
  const bool plain = number < 6;
  if (number < 2) spec = InGroup(spec, "G", 2);
  if (plain) return spec;
  constexpr CollectiveKind kKinds[] = {CollectiveKind::kBroadcast, CollectiveKind::kGather};
  spec.op = ReduceOp::kNone;
  if (number < 8) {
    spec.kind = kKinds[number - 6];
    return spec;
  }
  // Neighbours: even ranks send to the one behind.
  spec.process_set = ProcessSetId{Below(20) == 0 ? 1 : 0};
  const bool sends = sender.rank % 2 == (Below(40) == 0 ? 1 : 0);
  spec.kind = sends ? CollectiveKind::kSend : CollectiveKind::kReceive;
  spec.peer_rank = sender.rank + (sends ? 1 : -1);
  return spec;
}

// By its slot if it has one, unless it happens to be another tensor of that name.
void RandomMessages::Add(const TensorSpec& spec, KnownWorker& sender, v1::TensorsReady& ready) {
  const bool may_have_slot = !IsPairwise(spec.kind) && Below(12) > 0;
  if (may_have_slot && sender.slots.Report(ToInt(spec.process_set), spec.name, ready)) return;
  ToProto(spec, ready.add_tensors());
}

v1::WorkerMessage RandomMessages::ReadyOne(uint64_t number, int32_t set, KnownWorker& sender) {
  v1::WorkerMessage message;
  sender.slots.Hear(random_);
  TensorSpec spec = SpecOf(number, sender);
  if (!IsPairwise(spec.kind)) spec.process_set = ProcessSetId{set};
  Add(spec, sender, *message.mutable_tensors_ready());
  return message;
}

v1::WorkerMessage RandomMessages::Ready(KnownWorker& sender) {
  v1::WorkerMessage message;
  v1::TensorsReady& ready = *message.mutable_tensors_ready();
  sender.slots.Hear(random_);
  if (Below(6) == 0) sender.slots.ReportAny(random_, ready);
  for (uint64_t i = 1 + Below(4); i > 0; --i) {
    TensorSpec spec = SpecOf(Below(9), sender);
    if (Below(60) == 0) spec.shape = {99};
    if (Below(60) == 0) spec.group_size = 3;
    v1::TensorSpec* proto = ready.add_tensors();
    ToProto(spec, proto);
    if (Below(60) == 0) proto->set_kind(static_cast<v1::CollectiveKind>(Below(14)));
    if (Below(60) == 0) proto->set_dtype(static_cast<v1::DataType>(Below(18)));
    if (Below(60) == 0) proto->add_shape(-1);
    if (Below(calm_ ? 9000 : 400) == 0) proto->set_name("");
  }
  if (Below(calm_ ? 9000 : 400) == 0) {  // what it may not be able to mean
    v1::CachedTensors& cached = *ready.add_cached();
    cached.set_process_set(SomeSet());
    cached.set_known(static_cast<int64_t>(Below(6)));
    cached.set_first_slot(static_cast<int64_t>(Below(6)));
    cached.set_bits(std::string(Below(3), '\x11'));
  }
  return message;
}

v1::WorkerMessage RandomMessages::JoinTensor() {
  v1::WorkerMessage message;
  TensorSpec spec;
  spec.name = Below(40) == 0 ? "joined" : "join";
  spec.kind = CollectiveKind::kJoin;
  ToProto(spec, message.mutable_tensors_ready()->add_tensors());
  return message;
}

v1::WorkerMessage RandomMessages::SetRequest(const KnownWorker& sender) {
  v1::WorkerMessage message;
  v1::ProcessSetRequest* request = message.mutable_process_set_request();
  request->set_request(sender.requests + (Below(calm_ ? 900 : 90) == 0 ? 2 : 1));
  // All ranks ask for the same under one number, most of the time.
  const int64_t what = sender.requests + (Below(60) == 0 ? 1 : 0);
  if (sender.requests > 0 && Below(12) == 0) {
    request->set_request(sender.requests);
    request->set_withdrawn(true);
  } else if (what % 4 == 3) {
    request->set_remove(static_cast<int32_t>(1 + what % 5));
  } else {
    const int64_t bits = what % 7 + 1;
    for (int32_t rank = 0; rank < sender.size; ++rank) {
      if ((bits >> rank % 3 & 1) != 0) request->add_ranks(rank);
    }
  }
  return message;
}

// The members of a set follow from its name, most of the time. A rank that waits for an answer does
// not ask under the name again, since that breaks the protocol.
v1::WorkerMessage RandomMessages::NamedSetRequest(uint64_t number, KnownWorker& sender) {
  v1::WorkerMessage message;
  v1::ProcessSetRequest* request = message.mutable_process_set_request();
  const std::string name = absl::StrCat("named", number % 4);
  request->set_name(name);
  const bool is_odd = Below(40) == 0;
  for (int32_t rank = 0; rank < sender.size; ++rank) {
    if ((number + static_cast<uint64_t>(rank)) % 3 != 0 || (is_odd && rank == 0))
      request->add_ranks(rank);
  }
  const auto known = sender.by_name.find(name);
  if (known == sender.by_name.end()) {
    sender.by_name[name] = 0;
  } else if (known->second != 0 && !is_odd) {
    request->clear_ranks();
    request->set_remove(known->second);
    known->second = 0;
  } else {
    request->clear_ranks();
    request->set_withdrawn(true);  // of nothing, perhaps
  }
  return message;
}

Inbound RandomMessages::Call(CallId call) {
  if (Below(8) == 0) return CallCancelled{CallId{static_cast<int64_t>(Below(20))}};
  if (Below(8) == 0) {
    TraceCall trace{call, {}};
    trace.request.set_job(absl::StrCat("job", Below(4)));
    trace.request.set_steps(static_cast<int32_t>(Below(3)));
    trace.request.set_seconds(static_cast<double>(Below(3)));
    return trace;
  }
  if (Below(calm_ ? 80 : 8) == 0) return Dismissal(call);
  if (Below(4) > 0) return StoreRequest(call);
  ExitsReported reported{call, {}};
  reported.request.set_job(absl::StrCat("job", Below(4)));
  reported.request.set_token(Below(20) == 0 ? "wrong" : "secret");
  for (uint64_t i = Below(4); i > 0; --i) {
    v1::LaunchedExit* exit = reported.request.add_exits();
    exit->set_launch(absl::StrCat("launch", Below(12)));
    exit->mutable_exit()->set_signal(static_cast<int32_t>(Below(3)));
  }
  return reported;
}

Inbound RandomMessages::StoreRequest(CallId number) {
  StoreCall call{.call = number,
                 .job = absl::StrCat("job", Below(4)),
                 .token = Below(20) == 0 ? "wrong" : "secret",
                 .request = StoreGet{}};
  const std::string scope = Below(2) == 0 ? "" : absl::StrCat("gen/", Below(5), "/");
  const std::string key = absl::StrCat(scope, "k", Below(4));
  switch (Below(9)) {
    case 4:
      call.request =
          StoreCompareSet{key, Below(2) == 0 ? std::nullopt : std::optional<std::string>("v"), "w"};
      break;
    case 5:
      call.request = StoreAppend{key, "v"};
      break;
    case 6:
      call.request = StoreDelete{key};
      break;
    case 7:
      call.request = StoreLook{{key, absl::StrCat("k", Below(4))}, Below(2) == 0};
      break;
    case 8:
      call.request = StoreCount{scope};
      break;
    case 0:
      call.request = StoreSet{key, "v"};
      break;
    case 1:
      call.request = StoreAdd{key, 1};
      break;
    case 2:
      call.request = StoreDeletePrefix{key};
      break;
    default:
      call.request = StoreGet{key};
  }
  return call;
}

DismissCall RandomMessages::Dismissal(CallId number) {
  DismissCall call{number, {}};
  v1::DismissRequest& request = call.request;
  if (Below(8) > 0) request.set_job(absl::StrCat("job", Below(4)));
  request.set_action(static_cast<v1::DismissAction>(Below(20) == 0 ? Below(6) : 1 + Below(3)));
  switch (Below(4)) {
    case 0:
      request.set_node(absl::StrCat("n", Below(3)));
      break;
    case 1:
      request.add_launches(absl::StrCat("launch", Below(12)));
      break;
    default:
      request.set_rank(static_cast<int32_t>(Below(5)) - (Below(40) == 0 ? 3 : 0));
  }
  request.set_grace_seconds(static_cast<double>(Below(30)) - (Below(40) == 0 ? 30 : 0));
  request.set_force(Below(2) == 0);
  return call;
}

}  // namespace coordd
