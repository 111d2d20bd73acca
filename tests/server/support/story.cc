#include "tests/server/support/story.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/server/support/builders.h"

namespace coordd {
namespace {

constexpr Epoch kEpoch{3};

// "grad[4,2]"
TensorSpec TensorOf(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::ByAnyChar("[]"));
  TensorSpec spec = Gradient(parts[0], {});
  if (parts.size() < 2) return spec;
  for (absl::string_view extent : absl::StrSplit(parts[1], ',', absl::SkipEmpty())) {
    spec.shape.push_back(NumberOf(extent));
  }
  return spec;
}

}  // namespace

Story::Story() : start_(absl::FromUnixSeconds(1000000)), now_(start_), next_beat_(start_) {}

std::vector<std::string> Story::Run(const std::string& text) {
  lines_.clear();
  const Command command = ParseStoryCommand(text);
  if (command.verb == "options") {
    SetOptions(command);
    return lines_;
  }
  if (state_ == nullptr) state_ = std::make_unique<CoordinatorState>(options_, kEpoch);
  if (!Worker(command) && !StoreOrTime(command)) lines_.push_back("not understood: " + text);
  return lines_;
}

void Story::SetOptions(const Command& command) {
  options_.lease = DurationOf(command.Get("lease", "10s"));
  options_.heartbeat_interval = DurationOf(command.Get("heartbeat", "2s"));
  options_.stall_warning = DurationOf(command.Get("stall_warning", "10s"));
  options_.stall_abort = DurationOf(command.Get("stall_abort", "5m"));
  options_.max_batch_bytes = command.Number("max_batch", options_.max_batch_bytes);
  options_.schedule_after_steps = command.Number("schedule_after", 3);
  options_.slots = command.Number("slots", options_.slots);
  options_.max_workers = static_cast<int32_t>(command.Number("max_workers", 0));
  options_.max_jobs = static_cast<int32_t>(command.Number("max_jobs", options_.max_jobs));
  options_.max_pending_tensors_per_job = command.Number("max_pending", 1 << 20);
  options_.max_store_keys_per_job = command.Number("max_keys", 1 << 20);
  options_.reform_timeout = DurationOf(command.Get("reform_timeout", "10m"));
  options_.reset_limit = static_cast<int32_t>(command.Number("reset_limit", 0));
  options_.ended_job_retention = DurationOf(command.Get("retention", "1h"));
  if (const absl::Status valid = options_.Validate(); !valid.ok())
    lines_.push_back(std::string(valid.message()));
}

bool Story::Worker(const Command& command) {
  if (command.verb == "join") {
    Join(command);
  } else if (command.verb == "ready") {
    Ready(command);
  } else if (command.verb == "withdraw") {
    v1::WorkerMessage message = From(command);
    message.mutable_tensors_withdrawn()->add_names(command.words.at(1));
    message.mutable_tensors_withdrawn()->set_reason(command.Get("reason", ""));
    message.mutable_tensors_withdrawn()->set_process_set(
        static_cast<int32_t>(command.Number("set", 0)));
    Step(SessionMessage{SessionOf(command).id, message});
  } else if (command.verb == "addset" || command.verb == "removeset") {
    RequestSet(command);
  } else if (command.verb == "failed") {
    v1::WorkerMessage message = From(command);
    message.mutable_collective_failed()->set_tensor(command.Get("tensor", ""));
    message.mutable_collective_failed()->set_detail(command.Get("detail", ""));
    message.mutable_collective_failed()->set_suspect_rank(
        static_cast<int32_t>(command.Number("suspect", -1)));
    message.mutable_collective_failed()->set_suspect_silent(command.Number("silent", 0) != 0);
    Step(SessionMessage{SessionOf(command).id, message});
  } else if (command.verb == "beat") {
    v1::WorkerMessage message = From(command);
    *message.mutable_heartbeat() = HeartbeatOf(command);
    Step(SessionMessage{SessionOf(command).id, message});
  } else if (command.verb == "ack" || command.verb == "break" || command.verb == "frozen" ||
             command.verb == "finished") {
    Schedule(command);
  } else if (command.verb == "begun" || command.verb == "chunk") {
    v1::WorkerMessage message = From(command);
    v1::TraceChunk* chunk = message.mutable_trace_chunk();
    chunk->set_id(command.Number("id", 1));
    chunk->set_begun(command.verb == "begun");
    chunk->set_cycles(command.Number("cycles", 0));
    chunk->set_batches(command.Get("batches", ""));
    chunk->set_last(command.Number("last", 0) == 1);
    chunk->set_dropped(command.Number("dropped", 0));
    Step(SessionMessage{SessionOf(command).id, message});
  } else if (command.verb == "report") {
    v1::WorkerMessage message = From(command);
    message.mutable_recovery_report();
    Step(SessionMessage{SessionOf(command).id, message});
  } else if (command.verb == "change") {
    v1::WorkerMessage message = From(command);
    message.mutable_change_members();
    Step(SessionMessage{SessionOf(command).id, message});
  } else {
    return Leaving(command);
  }
  return true;
}

bool Story::Leaving(const Command& command) {
  if (command.verb == "leave") {
    v1::WorkerMessage message = From(command);
    message.mutable_leave()->set_reason(command.Get("reason", ""));
    message.mutable_leave()->set_failure(command.Get("failure", ""));
    message.mutable_leave()->set_drained(command.Number("drained", 0) == 1);
    Step(SessionMessage{SessionOf(command).id, message});
  } else if (command.verb == "asks") {
    v1::WorkerMessage message = From(command);
    ToProto(DurationOf(command.Get("grace", "0s")),
            message.mutable_drain_request()->mutable_grace());
    message.mutable_drain_request()->set_reason(command.Get("reason", ""));
    Step(SessionMessage{SessionOf(command).id, message});
  } else if (command.verb == "lost") {
    Session& session = SessionOf(command);
    session.open = false;
    Step(SessionEnded{session.id, command.Get("detail", "")});
  } else if (command.verb == "silent") {
    SessionOf(command).beats = false;
  } else {
    return false;
  }
  return true;
}

bool Story::StoreOrTime(const Command& command) {
  if (command.verb == "set" || command.verb == "get" || command.verb == "add" ||
      command.verb == "delete") {
    Call(command);
  } else if (command.verb == "trace") {
    TraceCall call{CallId{++last_id_}, {}};
    call.request.set_job(command.words.at(0));
    call.request.set_steps(static_cast<int32_t>(command.Number("steps", 0)));
    call.request.set_seconds(static_cast<double>(command.Number("seconds", 0)));
    calls_[command.Get("as", "trace")] = call.call;
    Step(call);
  } else if (command.verb == "exit") {
    Exit(command);
  } else if (command.verb == "evict" || command.verb == "drain" || command.verb == "lift") {
    Dismiss(command);
  } else if (command.verb == "cancel") {
    Step(CallCancelled{calls_[command.words[0]]});
  } else if (command.verb == "tick") {
    Pass(DurationOf(command.words[0]));
  } else if (command.verb == "sleep") {
    now_ += DurationOf(command.words[0]);
    next_beat_ = std::max(next_beat_, now_);
    Turn();
  } else if (command.verb == "stop") {
    Step(StopRequested{command.Get("reason", "coordd is stopping")});
  } else if (command.verb == "status") {
    Status(command);
  } else {
    return false;
  }
  return true;
}

void Story::Exit(const Command& command) {
  ExitsReported in{CallId{++last_id_}, {}};
  in.request.set_job(command.Get("job", "train"));
  in.request.set_token(command.Get("token", "secret"));
  v1::LaunchedExit* exit = in.request.add_exits();
  exit->set_launch(command.words[0]);
  exit->set_hostname(command.Get("node", "n0"));
  exit->set_pid(static_cast<int32_t>(command.Number("pid", 0)));
  exit->mutable_exit()->set_signal(static_cast<int32_t>(command.Number("signal", 0)));
  exit->mutable_exit()->set_code(static_cast<int32_t>(command.Number("code", 0)));
  exit->mutable_exit()->set_reason(command.Get("reason", ""));
  if (command.named.contains("words"))
    exit->mutable_exit()->add_last_words(command.Get("words", ""));
  calls_["exit"] = in.call;
  Step(in);
}

void Story::Dismiss(const Command& command) {
  DismissCall call{CallId{++last_id_}, {}};
  call.request.set_action(command.verb == "evict"   ? v1::DISMISS_ACTION_EVICT
                          : command.verb == "drain" ? v1::DISMISS_ACTION_DRAIN
                                                    : v1::DISMISS_ACTION_LIFT);
  call.request.set_job(command.Get("job", ""));
  call.request.set_asked_by(command.Get("by", ""));
  call.request.set_force(command.Number("force", 0) == 1);
  call.request.set_grace_seconds(absl::ToDoubleSeconds(DurationOf(command.Get("grace", "0s"))));
  const std::string& who = command.words[0];
  int32_t rank = 0;
  if (absl::SimpleAtoi(who, &rank)) {
    call.request.set_rank(rank);
  } else if (!who.empty()) {
    call.request.set_node(who);
  }
  if (command.named.contains("launch")) call.request.add_launches(command.Get("launch", ""));
  calls_[command.verb] = call.call;
  Step(call);
}

void Story::Join(const Command& command) {
  const std::string& name = command.words[0];
  Session& session = sessions_[name];
  if (!session.open || session.id == SessionId{0} || command.named.contains("again")) {
    session = Session{.id = SessionId{++last_id_}, .generation = Generation{0}};
  }
  v1::WorkerMessage message;
  v1::Join* join = message.mutable_join();
  *join = JoinOf(command.Get("id", name), command.Get("node", "n0"));
  join->set_job(command.Get("job", "train"));
  join->set_token(command.Get("token", "secret"));
  join->set_launcher_rank(static_cast<int32_t>(command.Number("lrank", -1)));
  join->set_launcher_local_rank(static_cast<int32_t>(command.Number("lslot", -1)));
  join->set_pid(static_cast<int32_t>(command.Number("pid", 100 + ToInt(session.id))));
  join->mutable_versions()->set_protocol(
      static_cast<int32_t>(command.Number("protocol", kProtocolVersion)));
  join->mutable_versions()->set_nccl(command.Get("nccl", ""));
  for (absl::string_view label : absl::StrSplit(command.Get("labels", ""), '/', absl::SkipEmpty()))
    join->mutable_host()->add_topology(std::string(label));
  for (absl::string_view gpu : absl::StrSplit(command.Get("gpu", ""), ',', absl::SkipEmpty())) {
    v1::Device* device = join->add_devices();
    device->set_kind(v1::MEMORY_KIND_CUDA);
    device->set_uuid(std::string(gpu));
  }
  join->mutable_limits()->set_min_workers(static_cast<int32_t>(command.Number("min", 0)));
  join->mutable_limits()->set_max_workers(static_cast<int32_t>(command.Number("max", 0)));
  if (command.named.contains("settle"))
    ToProto(DurationOf(command.Get("settle", "")),
            join->mutable_limits()->mutable_settling_window());
  if (command.named.contains("asking"))
    ToProto(DurationOf(command.Get("asking", "")), join->mutable_asking_for());
  if (const auto named = OnFailureFromName(command.Get("on_failure", "")))
    join->set_on_failure(static_cast<v1::OnFailure>(*named));
  join->set_launch(command.Get("launch", ""));
  join->set_executes_schedules(command.Number("schedules", 0) >= 1);
  join->set_schedules_devices(command.Number("schedules", 0) == 2);
  join->set_traces(command.Number("traces", 0) == 1);
  join->set_drains(command.Number("drains", 1) == 1);
  join->set_keeps_process_sets(command.Number("sets", 1) == 1);
  join->set_knows_slots(command.Number("slots", 0) == 1);
  join->set_knows_topology(command.Number("topology", 0) == 1);
  if (command.named.contains("resume")) join->mutable_resume()->set_session(1);
  Step(SessionMessage{session.id, message});
}

void Story::Ready(const Command& command) {
  v1::WorkerMessage message = From(command);
  for (size_t i = 1; i < command.words.size(); ++i) {
    TensorSpec spec = TensorOf(command.words[i]);
    spec.dtype = DataTypeFromName(command.Get("dtype", "float32")).value_or(DataType::kFloat32);
    spec.group = command.Get("group", "");
    spec.group_size = static_cast<int32_t>(command.Number("size", 0));
    spec.root_rank = static_cast<int32_t>(command.Number("root", 0));
    spec.process_set = ProcessSetId{static_cast<int32_t>(command.Number("set", 0))};
    spec.peer_rank = static_cast<int32_t>(command.Number("peer", 0));
    if (command.Get("memory", "host") == "cuda") spec.memory = MemoryKind::kCuda;
    const std::string kind = command.Get("kind", "allreduce");
    spec.kind = CollectiveKindFromName(kind).value_or(CollectiveKind::kAllreduce);
    spec.op = Reduces(spec.kind)
                  ? ReduceOpFromName(command.Get("op", "sum")).value_or(ReduceOp::kNone)
                  : ReduceOp::kNone;
    ToProto(spec, message.mutable_tensors_ready()->add_tensors());
  }
  if (command.named.contains("known")) {
    v1::CachedTensors* cached = message.mutable_tensors_ready()->add_cached();
    cached->set_known(command.Number("known", 0));
    cached->set_first_slot(command.Number("first", 0));
    if (const int64_t bits = command.Number("bits", 0)) *cached->mutable_bits() = char(bits);
  }
  Step(SessionMessage{SessionOf(command).id, message});
}

void Story::RequestSet(const Command& command) {
  v1::WorkerMessage message = From(command);
  v1::ProcessSetRequest* request = message.mutable_process_set_request();
  Session& session = SessionOf(command);
  const std::string what = command.words.size() > 1 ? command.words[1] : "";
  const bool withdrawn = command.named.contains("withdrawn");
  request->set_name(command.Get("name", ""));
  if (!withdrawn && request->name().empty()) ++session.requests;
  request->set_request(request->name().empty() ? command.Number("request", session.requests) : 0);
  request->set_withdrawn(withdrawn);
  if (command.verb == "removeset") {
    request->set_remove(static_cast<int32_t>(NumberOf(what)));
  } else {
    for (absl::string_view rank : absl::StrSplit(what, ',', absl::SkipEmpty())) {
      request->add_ranks(static_cast<int32_t>(NumberOf(rank)));
    }
  }
  Step(SessionMessage{session.id, message});
}

void Story::Call(const Command& command) {
  StoreCall call{.call = CallId{++last_id_},
                 .job = command.Get("job", "train"),
                 .token = command.Get("token", "secret"),
                 .request = StoreGet{}};
  std::string name = command.verb;
  const std::vector<std::string>& words = command.words;
  const std::string second = words.size() > 1 ? words[1] : "";
  if (command.verb == "set") {
    call.request = StoreSet{words[0], second};
  } else if (command.verb == "add") {
    call.request = StoreAdd{words[0], NumberOf(second)};
  } else if (command.verb == "delete") {
    call.request = StoreDeletePrefix{words[0]};
  } else {
    name = words[0];
    call.request = StoreGet{second};
  }
  calls_[name] = call.call;
  Step(call);
}

void Story::Status(const Command& command) {
  v1::ServerState state;
  state_->Describe(command.words[0], now_, &state);
  for (const v1::JobState& job : state.jobs()) {
    for (const std::string& line : ToText(job)) lines_.push_back(line);
  }
}

void Story::Beat(Session& session) {
  v1::WorkerMessage message = MessageOf(kEpoch, session.generation);
  message.mutable_heartbeat();
  quiet_ = true;
  Step(SessionMessage{session.id, message});
  quiet_ = false;
}

void Story::Pass(absl::Duration duration) {
  const absl::Time end = now_ + duration;
  const absl::Time began = now_;
  show_time_ = true;
  start_ = began;
  while (true) {
    if (next_beat_ <= now_) next_beat_ = now_ + options_.heartbeat_interval;
    const absl::Time next = std::min({end, next_beat_, std::max(now_, state_->NextDeadline())});
    now_ = next;
    Turn();
    if (now_ == next_beat_) {
      for (auto& [name, session] : sessions_) {
        if (session.open && session.beats && ToInt(session.id) != 0) Beat(session);
      }
    }
    if (now_ >= end && state_->NextDeadline() > now_) break;
  }
  show_time_ = false;
}

v1::WorkerMessage Story::From(const Command& command) {
  const Session& session = SessionOf(command);
  return MessageOf(Epoch{command.Number("epoch", ToInt(kEpoch))},
                   Generation{command.Number("gen", ToInt(session.generation))});
}

Story::Session& Story::SessionOf(const Command& command) {
  Session& session = sessions_[command.words[0]];
  if (session.id == SessionId{0}) session.id = SessionId{++last_id_};
  return session;
}

void Story::Step(const Inbound& in) {
  history_.Saw(in);
  Effects effects;
  state_->Step(in, now_, effects);
  Take(std::move(effects));
  Turn();
}

void Story::Turn() {
  Effects effects;
  state_->Tick(now_, effects);
  Take(std::move(effects));
  const absl::Status consistent = state_->CheckConsistency();
  if (!consistent.ok()) lines_.push_back(absl::StrCat("BROKEN: ", consistent.message()));
}

void Story::Take(Effects effects) {
  const absl::Status history = history_.Saw(effects);
  if (!history.ok()) lines_.push_back(absl::StrCat("BROKEN: ", history.message()));
  const EffectNames names{.session =
                              [this](SessionId id) {
                                for (const auto& [name, session] : sessions_) {
                                  if (session.id == id) return name;
                                }
                                return absl::StrCat("session", ToInt(id));
                              },
                          .call =
                              [this](CallId id) {
                                for (const auto& [name, call] : calls_) {
                                  if (call == id) return name;
                                }
                                return absl::StrCat("call", ToInt(id));
                              }};
  const std::string time =
      show_time_ ? absl::StrCat("+", absl::FormatDuration(now_ - start_), " ") : "";
  for (const Outgoing& out : effects.outgoing) {
    if (const auto* deliver = std::get_if<Deliver>(&out)) {
      for (auto& [name, session] : sessions_) {
        if (deliver->message->has_membership() && deliver->to.front() == session.id) {
          session.generation = Generation{deliver->message->generation()};
          session.requests = 0;
        }
      }
      if (quiet_ && deliver->message->has_lease_ack()) continue;
    }
    lines_.push_back(time + ToText(out, names));
    if (const auto* close = std::get_if<CloseSession>(&out)) {
      for (auto& [name, session] : sessions_) {
        if (session.id == close->session) session.open = false;
      }
    }
  }
  for (const Event& event : effects.events) lines_.push_back(time + ToText(event));
}

}  // namespace coordd
