// CoordinatorState under random inputs, sensible and not, in any order: after each step its state
// is consistent and its history keeps the invariants. Afterwards the faults stop, and a generation
// must form.
#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/random.h"
#include "server/coordinator_state.h"
#include "server/invariants.h"
#include "tests/server/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

constexpr Epoch kFuzzEpoch{5};

class Fuzz {
 public:
  // Odd seeds are calm: generations live long enough to plan a lot.
  explicit Fuzz(uint64_t seed) : calm_(seed % 2 == 1), random_(seed) {
    options_.max_jobs = 3;
    options_.max_pending_tensors_per_job = 40;
    options_.max_store_keys_per_job = 10;
    options_.max_batch_bytes = 1024;
    options_.stall_warning = absl::Seconds(3);
    options_.stall_abort = absl::Seconds(20);
    options_.ended_job_retention = absl::Minutes(1);
    state_ = std::make_unique<CoordinatorState>(options_, kFuzzEpoch);
  }

  absl::Status RandomStep() {
    const uint64_t what = Below(100);
    if (what < 25) return MemberSends(Body());
    if (what < 33) return Report();
    if (what < 50) return Ready();
    if (what < 60) return AskForSet();
    if (what < 72) return Send(NewSession(), RandomJoin());
    if (what < 78) return calm_ && Below(20) > 0 ? Tick() : End(AnySession());
    if (what < 90) return RandomCall();
    if (what < 91 && !calm_) return Send(AnySession(), RandomJoin());
    if (what < 92) return Send(NewSession(), Body());
    if (what < 93) now_ += absl::Seconds(static_cast<int64_t>(Below(40)));
    now_ += absl::Milliseconds(static_cast<int64_t>(Below(1500)));
    return Tick();
  }

  // All goes home; then three fresh workers, and nothing goes wrong.
  absl::Status HealAndForm() {
    const auto sessions = sessions_;
    for (const auto& [session, known] : sessions) {
      absl::Status status = End(session);
      if (!status.ok()) return status;
    }
    for (int i = 0; i < 3; ++i) {
      v1::WorkerMessage message;
      *message.mutable_join() = JoinOf(absl::StrCat("fresh", i));
      message.mutable_join()->mutable_limits()->set_min_workers(3);
      absl::Status status = Send(NewSession(), message);
      if (!status.ok()) return status;
    }
    now_ += absl::Seconds(1);
    absl::Status status = Tick();
    for (const auto& [session, known] : sessions_) {
      if (known.generation == Generation{0}) return absl::InternalError("no generation formed");
    }
    return status;
  }

  int64_t planned() const { return planned_; }
  int64_t formed() const { return formed_; }
  int64_t reformed() const { return reformed_; }  // memberships of those who had one before
  int64_t planned_in_sets() const { return planned_in_sets_; }
  int64_t planned_for_joined() const { return planned_for_joined_; }
  int64_t sets_added() const { return sets_added_; }
  int64_t joins_completed() const { return joins_completed_; }

 private:
  struct Known {  // what a worker knows
    std::string job;
    Generation generation;
    int32_t rank = 0;
    int32_t size = 1;
    int64_t requests = 0;  // for process sets
    bool owes_report = false;
  };
  uint64_t Below(uint64_t bound) { return random_.Below(bound); }

  SessionId NewSession() { return SessionId{++last_session_}; }
  SessionId AnySession() {
    if (sessions_.empty() || Below(20) == 0) return NewSession();
    return std::next(sessions_.begin(), static_cast<int64_t>(Below(sessions_.size())))->first;
  }

  v1::WorkerMessage RandomJoin() {
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
    if (Below(2) == 0) join->set_launch(absl::StrCat("launch", Below(12)));
    if (Below(10) == 0) {
      v1::Device* device = join->add_devices();
      device->set_kind(v1::MEMORY_KIND_CUDA);
      device->set_uuid(absl::StrCat("GPU-", Below(3)));
    }
    return message;
  }

  v1::WorkerMessage Body() {
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
    switch (calm_ && Below(20) > 0 ? 9 : Below(40)) {
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
      case 4:
      case 5:
      case 6:
        message.mutable_tensors_withdrawn()->add_names(Below(6) == 0 ? "join"
                                                                     : absl::StrCat("t", Below(9)));
        message.mutable_tensors_withdrawn()->set_process_set(SomeSet());
        break;
      default:
        message.mutable_heartbeat()->set_bytes_reduced(static_cast<int64_t>(Below(1000)));
    }
    return message;
  }

  // Most often the set of all; sometimes one that is not there.
  int32_t SomeSet() { return Below(3) > 0 ? 0 : static_cast<int32_t>(1 + Below(3)); }

  // What belongs to a number is the same on all ranks, most of the time.
  TensorSpec SpecOf(uint64_t number, const Known& sender) {
    TensorSpec spec = Gradient(absl::StrCat("t", number), {static_cast<int64_t>(number) + 1});
    spec.process_set = ProcessSetId{SomeSet()};
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

  // A session alone, or all of its generation: programs mostly do the same on all ranks.
  std::vector<SessionId> SomeSenders() {
    const SessionId session = AnySession();
    const auto it = sessions_.find(session);
    if (it == sessions_.end() || Below(2) == 0) return {session};
    std::vector<SessionId> all;
    for (const auto& [other, known] : sessions_) {
      if (known.job == it->second.job && known.generation == it->second.generation) {
        all.push_back(other);
      }
    }
    return all;
  }
  Known KnownTo(SessionId session) const {
    const auto it = sessions_.find(session);
    return it == sessions_.end() ? Known() : it->second;
  }

  // Of a survivor of a generation that another one follows, if there is one.
  absl::Status Report() {
    for (auto& [session, known] : sessions_) {
      if (!known.owes_report || Below(4) == 0) continue;
      v1::WorkerMessage message = MessageOf(kFuzzEpoch, known.generation);
      message.mutable_recovery_report();
      known.owes_report = false;
      return Send(session, message);
    }
    return Ready();
  }

  absl::Status Ready() {
    const std::vector<SessionId> senders = SomeSenders();
    const uint64_t number = Below(9);
    const int32_t set = SomeSet();
    for (SessionId session : senders) {
      v1::WorkerMessage message;
      if (Below(12) == 0) {
        message = JoinBody();
      } else if (senders.size() == 1) {
        message = ReadyBody(KnownTo(session));
      } else {
        TensorSpec spec = SpecOf(number, KnownTo(session));
        if (!IsPairwise(spec.kind)) spec.process_set = ProcessSetId{set};
        ToProto(spec, message.mutable_tensors_ready()->add_tensors());
      }
      absl::Status status = SendFrom(session, message);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  v1::WorkerMessage JoinBody() {
    v1::WorkerMessage message;
    TensorSpec spec;
    spec.name = Below(40) == 0 ? "joined" : "join";
    spec.kind = CollectiveKind::kJoin;
    ToProto(spec, message.mutable_tensors_ready()->add_tensors());
    return message;
  }

  absl::Status AskForSet() {
    for (SessionId session : SomeSenders()) {
      absl::Status status = AskForSet(session);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status AskForSet(SessionId session) {
    const auto it = sessions_.find(session);
    const Known known = KnownTo(session);
    v1::WorkerMessage message;
    v1::ProcessSetRequest* request = message.mutable_process_set_request();
    request->set_request(known.requests + (Below(calm_ ? 900 : 90) == 0 ? 2 : 1));
    // All ranks ask for the same under one number, most of the time.
    const int64_t what = known.requests + (Below(60) == 0 ? 1 : 0);
    if (known.requests > 0 && Below(12) == 0) {
      request->set_request(known.requests);
      request->set_withdrawn(true);
    } else if (what % 4 == 3) {
      request->set_remove(static_cast<int32_t>(1 + what % 5));
    } else {
      const int64_t bits = what % 7 + 1;
      for (int32_t rank = 0; rank < known.size; ++rank) {
        if ((bits >> rank % 3 & 1) != 0) request->add_ranks(rank);
      }
    }
    if (it != sessions_.end() && !request->withdrawn()) ++it->second.requests;
    return SendFrom(session, message);
  }

  v1::WorkerMessage ReadyBody(const Known& sender) {
    v1::WorkerMessage message;
    for (uint64_t i = 1 + Below(4); i > 0; --i) {
      TensorSpec spec = SpecOf(Below(9), sender);
      if (Below(60) == 0) spec.shape = {99};
      if (Below(60) == 0) spec.group_size = 3;
      v1::TensorSpec* proto = message.mutable_tensors_ready()->add_tensors();
      ToProto(spec, proto);
      if (Below(60) == 0) proto->set_kind(static_cast<v1::CollectiveKind>(Below(14)));
      if (Below(60) == 0) proto->set_dtype(static_cast<v1::DataType>(Below(18)));
      if (Below(60) == 0) proto->add_shape(-1);
      if (Below(calm_ ? 9000 : 400) == 0) proto->set_name("");
    }
    return message;
  }

  absl::Status MemberSends(v1::WorkerMessage message) {
    return SendFrom(AnySession(), std::move(message));
  }
  absl::Status SendFrom(SessionId session, v1::WorkerMessage message) {
    const auto it = sessions_.find(session);
    message.set_epoch(ToInt(kFuzzEpoch));
    message.set_generation(it == sessions_.end() ? 0 : ToInt(it->second.generation));
    if (Below(calm_ ? 2000 : 50) == 0) message.set_generation(static_cast<int64_t>(Below(4)));
    if (Below(calm_ ? 2000 : 100) == 0) message.set_epoch(static_cast<int64_t>(Below(7)));
    return Send(session, message);
  }

  absl::Status RandomCall() {
    if (Below(8) == 0) return Step(CallCancelled{CallId{static_cast<int64_t>(Below(20))}});
    if (Below(8) == 0) {
      TraceCall call{CallId{++last_call_}, {}};
      call.request.set_job(absl::StrCat("job", Below(4)));
      call.request.set_steps(static_cast<int32_t>(Below(3)));
      call.request.set_seconds(static_cast<double>(Below(3)));
      return Step(call);
    }
    if (Below(calm_ ? 80 : 8) == 0) return Step(RandomDismissal());
    if (Below(4) == 0) {
      ExitsReported call{CallId{++last_call_}, {}};
      call.request.set_job(absl::StrCat("job", Below(4)));
      call.request.set_token(Below(20) == 0 ? "wrong" : "secret");
      for (uint64_t i = Below(4); i > 0; --i) {
        v1::LaunchedExit* exit = call.request.add_exits();
        exit->set_launch(absl::StrCat("launch", Below(12)));
        exit->mutable_exit()->set_signal(static_cast<int32_t>(Below(3)));
      }
      return Step(call);
    }
    StoreCall call{.call = CallId{++last_call_},
                   .job = absl::StrCat("job", Below(4)),
                   .token = Below(20) == 0 ? "wrong" : "secret",
                   .request = StoreGet{}};
    const std::string scope = Below(2) == 0 ? "" : absl::StrCat("gen/", Below(5), "/");
    const std::string key = absl::StrCat(scope, "k", Below(4));
    switch (Below(4)) {
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
    return Step(call);
  }

  DismissCall RandomDismissal() {
    DismissCall call{CallId{++last_call_}, {}};
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

  absl::Status Send(SessionId session, const v1::WorkerMessage& message) {
    if (message.has_join()) sessions_.try_emplace(session).first->second.job = message.join().job();
    return Step(SessionMessage{session, message});
  }
  absl::Status End(SessionId session) {
    sessions_.erase(session);
    return Step(SessionEnded{session, "gone"});
  }

  absl::Status Step(const Inbound& in) {
    history_.Saw(in);
    Effects effects;
    state_->Step(in, now_, effects);
    absl::Status status = Take(effects);
    return status.ok() && Below(2) == 0 ? Tick() : status;
  }
  absl::Status Tick() {
    Effects effects;
    state_->Tick(now_, effects);
    return Take(effects);
  }

  absl::Status Take(const Effects& effects) {
    for (const Outgoing& out : effects.outgoing) {
      if (const auto* close = std::get_if<CloseSession>(&out)) sessions_.erase(close->session);
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver == nullptr) continue;
      const v1::CoordinatorMessage& message = *deliver->message;
      for (const v1::FusedBatch& batch : message.plan().batches()) Count(batch);
      if (message.process_set_change().ranks_size() > 0) ++sets_added_;
      // Ranks that have joined hear of requests that they have not made.
      for (SessionId to : deliver->to) {
        const auto known = sessions_.find(to);
        if (known == sessions_.end()) continue;
        known->second.requests =
            std::max(known->second.requests, message.process_set_change().request());
        if (message.has_abort()) known->second.owes_report = message.abort().reforms();
      }
      if (!message.has_membership()) continue;
      Known& known = sessions_[deliver->to.front()];
      if (known.generation != Generation{0}) ++reformed_;
      known.generation = Generation{message.generation()};
      known.requests = 0;
      known.owes_report = false;
      known.rank = message.membership().rank();
      known.size = message.membership().size();
      ++formed_;
    }
    absl::Status status = history_.Saw(effects);
    return status.ok() ? state_->CheckConsistency() : status;
  }

  void Count(const v1::FusedBatch& batch) {
    ++planned_;
    if (batch.process_set() != 0) ++planned_in_sets_;
    if (batch.specs_size() > 0) ++planned_for_joined_;
    if (batch.tensors(0) == "join") ++joins_completed_;
  }

  const bool calm_;
  Random random_;
  ServerOptions options_;
  std::unique_ptr<CoordinatorState> state_;
  HistoryChecker history_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::map<SessionId, Known> sessions_;  // open ones
  int64_t last_session_ = 0;
  int64_t last_call_ = 0;
  int64_t planned_ = 0;
  int64_t formed_ = 0;
  int64_t reformed_ = 0;
  int64_t planned_in_sets_ = 0;
  int64_t planned_for_joined_ = 0;
  int64_t sets_added_ = 0;
  int64_t joins_completed_ = 0;
};

TEST(CoordinatorFuzz, KeepsItsInvariantsWhateverComesIn) {
  int64_t planned = 0;
  int64_t formed = 0;
  int64_t reformed = 0;
  int64_t in_sets = 0;
  int64_t for_joined = 0;
  int64_t sets = 0;
  int64_t joins = 0;
  for (uint64_t seed = 1; seed <= 320; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Fuzz fuzz(seed);
    for (int step = 0; step < 1500; ++step) {
      ASSERT_THAT(fuzz.RandomStep(), IsOk()) << "step " << step;
    }
    ASSERT_THAT(fuzz.HealAndForm(), IsOk());
    planned += fuzz.planned();
    formed += fuzz.formed();
    reformed += fuzz.reformed();
    in_sets += fuzz.planned_in_sets();
    for_joined += fuzz.planned_for_joined();
    sets += fuzz.sets_added();
    joins += fuzz.joins_completed();
  }
  // That it got anywhere at all.
  EXPECT_GT(formed, 300);
  EXPECT_GT(reformed, 80);
  EXPECT_GT(planned, 10000);
  EXPECT_GT(sets, 400);
  EXPECT_GT(in_sets, 400);
  EXPECT_GT(for_joined, 600);
  EXPECT_GT(joins, 1000);
}

}  // namespace
}  // namespace coordd
