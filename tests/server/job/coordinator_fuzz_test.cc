// CoordinatorState under random inputs, sensible and not, in any order: after each step its state
// is consistent and its history keeps the invariants. Afterwards the faults stop, and a generation
// must form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "server/job/coordinator_state.h"
#include "tests/server/support/builders.h"
#include "tests/server/support/invariants.h"
#include "tests/server/support/random_messages.h"
#include "tests/support/histories.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

constexpr Epoch kFuzzEpoch{5};

// What has happened.
struct FuzzCounts {
  int64_t formed = 0, reformed = 0;  // memberships; of those who had one before
  int64_t planned = 0;               // batches; and which of them
  int64_t in_sets = 0, for_joined = 0, joins = 0, by_slot = 0, by_slot_in_sets = 0;
  int64_t by_slot_after_another = 0;  // in a generation that follows another one
  int64_t sets_added = 0, named_added = 0, named_ended = 0, named_refused = 0;
  int64_t reported_by_slot = 0, slots_forgotten = 0;
  int64_t schedules = 0, on_devices = 0, cuts = 0, staged = 0;
  int64_t shared = 0;  // messages of several sessions at once

  void Add(const FuzzCounts& more) {
    formed += more.formed;
    reformed += more.reformed;
    planned += more.planned;
    in_sets += more.in_sets;
    for_joined += more.for_joined;
    joins += more.joins;
    by_slot += more.by_slot;
    by_slot_in_sets += more.by_slot_in_sets;
    by_slot_after_another += more.by_slot_after_another;
    sets_added += more.sets_added;
    named_added += more.named_added;
    named_ended += more.named_ended;
    named_refused += more.named_refused;
    reported_by_slot += more.reported_by_slot;
    slots_forgotten += more.slots_forgotten;
    schedules += more.schedules;
    on_devices += more.on_devices;
    cuts += more.cuts;
    staged += more.staged;
    shared += more.shared;
  }
};

class Fuzz {
 public:
  // Odd seeds are calm: generations live long enough to plan a lot.
  // In every third one what consecutive sessions say comes as a node session brings it.
  explicit Fuzz(uint64_t seed) : calm_(seed % 2 == 1), shares_(seed % 3 == 0), random_(seed) {
    options_.max_jobs = 3;
    options_.max_pending_tensors_per_job = 40;
    options_.max_store_keys_per_job = 10;
    options_.max_batch_bytes = 1024;
    options_.stall_warning = absl::Seconds(3);
    options_.stall_abort = absl::Seconds(20);
    options_.ended_job_retention = absl::Minutes(1);
    // Mostly fewer than there are tensors.
    constexpr int64_t kSlots[] = {2, 5, 1, 4096};
    options_.slots = kSlots[seed / 2 % 4];
    // What is executed by schedule is not planned.
    options_.schedule_after_steps = seed % 5 == 0 ? 2 : 0;
    state_ = std::make_unique<CoordinatorState>(options_, kFuzzEpoch);
  }

  absl::Status RandomStep() {
    const uint64_t what = Below(100);
    if (what < 25) return SendFrom(AnySession(), messages_.Body());
    if (what < 33) return Report();
    if (what < 50) return Ready();
    if (what < 60) return AskForSet();
    if (what < 72) return Send(NewSession(), messages_.Join());
    if (what < 78) return calm_ && Below(20) > 0 ? Tick() : End(AnySession());
    if (what < 82) return OfSchedule();
    if (what < 90) return Step(messages_.Call(CallId{++last_call_}));
    if (what < 91 && !calm_) return Send(AnySession(), messages_.Join());
    if (what < 92) return Send(NewSession(), messages_.Body());
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
    // Jobs that nobody comes back to end, and make room.
    for (int i = 0; i < 30; ++i) {
      now_ += absl::Seconds(1);
      absl::Status status = Tick();
      if (!status.ok()) return status;
    }
    for (int i = 0; i < 3; ++i) {
      absl::Status status = Send(NewSession(), FreshJoin(absl::StrCat("fresh", i)));
      if (!status.ok()) return status;
    }
    now_ += absl::Seconds(1);
    absl::Status status = Tick();
    if (sessions_.size() != 3) return absl::InternalError("a fresh worker was turned away");
    for (const auto& [session, known] : sessions_) {
      if (known.generation == Generation{0}) return absl::InternalError("no generation formed");
    }
    return status;
  }

  // After HealAndForm: one of the three is lost and another one comes. What the same tensor is
  // planned by in the generation that follows is counted; it takes no chance to get there.
  absl::Status LoseOneAndPlan() {
    absl::Status status = End(sessions_.begin()->first);
    if (status.ok()) status = Send(NewSession(), FreshJoin("newcomer"));
    for (int i = 0; i < 10 && status.ok(); ++i) {
      now_ += absl::Seconds(1);
      status = Tick();
      for (const SessionId session : OpenSessions()) {
        if (!std::exchange(sessions_[session].owes_report, false) || !status.ok()) continue;
        v1::WorkerMessage report = MessageOf(kFuzzEpoch, sessions_[session].generation);
        report.mutable_recovery_report();
        status = Send(session, report);
      }
    }
    for (int round = 0; round < 4; ++round) {
      std::vector<SessionMessage> said;
      for (auto& [session, known] : sessions_) {
        v1::WorkerMessage ready = MessageOf(kFuzzEpoch, known.generation);
        known.slots.HearAll();
        if (!known.slots.Report(0, "steady", *ready.mutable_tensors_ready()))
          ToProto(Gradient("steady", {4}), ready.mutable_tensors_ready()->add_tensors());
        said.push_back({session, std::move(ready)});
      }
      if (status.ok()) status = SendAll(said);
      if (status.ok()) status = Tick();
    }
    return status;
  }

  const FuzzCounts& counts() const { return counts_; }

 private:
  uint64_t Below(uint64_t bound) { return random_.Below(bound); }

  SessionId NewSession() { return SessionId{++last_session_}; }
  SessionId AnySession() {
    if (sessions_.empty() || Below(20) == 0) return NewSession();
    return std::next(sessions_.begin(), static_cast<int64_t>(Below(sessions_.size())))->first;
  }

  // Of a job of three, whose survivors go on.
  static v1::WorkerMessage FreshJoin(const std::string& worker_id) {
    v1::WorkerMessage message;
    v1::Join& join = *message.mutable_join();
    join = JoinOf(worker_id);
    join.mutable_limits()->set_min_workers(3);
    join.set_on_failure(v1::ON_FAILURE_RAISE);
    join.set_knows_slots(true);
    return message;
  }

  std::vector<SessionId> OpenSessions() const {
    std::vector<SessionId> open;
    for (const auto& [session, known] : sessions_) open.push_back(session);
    return open;
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
  // A stranger knows nothing.
  KnownWorker& KnownTo(SessionId session) {
    const auto it = sessions_.find(session);
    return it == sessions_.end() ? stranger_ = KnownWorker() : it->second;
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
    const int32_t set = messages_.SomeSet();
    std::vector<SessionMessage> said;
    for (SessionId session : senders) {
      KnownWorker& sender = KnownTo(session);
      v1::WorkerMessage message = Below(12) == 0        ? messages_.JoinTensor()
                                  : senders.size() == 1 ? messages_.Ready(sender)
                                                        : messages_.ReadyOne(number, set, sender);
      Frame(session, message);
      said.push_back({session, std::move(message)});
    }
    return SendAll(said);
  }

  // Each by itself, or as a node session brings them: what is the same comes once.
  absl::Status SendAll(std::vector<SessionMessage>& said) {
    SharedMessage shared;
    for (SessionMessage& one : said) {
      absl::Status status;
      if (!shares_) {
        status = Send(one.session, one.message);
      } else if (!Joins(shared, one.session, one.message)) {
        status = SendShared(shared);
        shared = {{{one.session, 1}},
                  std::make_shared<const v1::WorkerMessage>(std::move(one.message))};
      }
      if (!status.ok()) return status;
    }
    return SendShared(shared);
  }

  // Whether it is the same, of the next session.
  static bool Joins(SharedMessage& shared, SessionId session, const v1::WorkerMessage& message) {
    if (shared.from.empty() || shared.message->SerializeAsString() != message.SerializeAsString())
      return false;
    SessionRange& last = shared.from.back();
    if (ToInt(last.first) + last.count == ToInt(session)) {
      ++last.count;
    } else {
      shared.from.push_back({session, 1});
    }
    return true;
  }
  absl::Status SendShared(const SharedMessage& shared) {
    if (shared.from.empty()) return absl::OkStatus();
    for (const SessionRange& range : shared.from) counts_.shared += range.count > 1 ? 1 : 0;
    return Step(shared);
  }

  absl::Status OfSchedule() {
    for (SessionId session : SomeSenders()) {
      absl::Status status = SendFrom(session, messages_.OfSchedule(KnownTo(session)));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status AskForNamedSet() {
    const uint64_t number = Below(4);
    for (SessionId session : SomeSenders()) {
      absl::Status status = SendFrom(session, messages_.NamedSetRequest(number, KnownTo(session)));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status AskForSet() {
    if (Below(2) == 0) return AskForNamedSet();
    for (SessionId session : SomeSenders()) {
      KnownWorker& sender = KnownTo(session);
      const v1::WorkerMessage message = messages_.SetRequest(sender);
      if (!message.process_set_request().withdrawn()) ++sender.requests;
      absl::Status status = SendFrom(session, message);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status SendFrom(SessionId session, v1::WorkerMessage message) {
    Frame(session, message);
    return Send(session, message);
  }
  void Frame(SessionId session, v1::WorkerMessage& message) {
    const auto it = sessions_.find(session);
    message.set_epoch(ToInt(kFuzzEpoch));
    message.set_generation(it == sessions_.end() ? 0 : ToInt(it->second.generation));
    if (Below(calm_ ? 2000 : 50) == 0) message.set_generation(static_cast<int64_t>(Below(4)));
    if (Below(calm_ ? 2000 : 100) == 0) message.set_epoch(static_cast<int64_t>(Below(7)));
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
    for (const Event& event : effects.events) {
      counts_.reported_by_slot += event.reported_by_slot;
      counts_.slots_forgotten += event.slots_forgotten;
    }
    for (const Outgoing& out : effects.outgoing) {
      if (const auto* close = std::get_if<CloseSession>(&out)) sessions_.erase(close->session);
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver == nullptr) continue;
      const v1::CoordinatorMessage& message = *deliver->message;
      for (const v1::FusedBatch& batch : message.plan().batches())
        Count(batch, deliver->to.front());
      Count(message.process_set_change());
      if (message.has_cut()) ++counts_.cuts;
      if (message.has_schedule()) Count(message.schedule());
      for (SessionId to : deliver->to) Hear(to, deliver->message);
      if (message.has_membership()) Enter(sessions_[deliver->to.front()], message);
    }
    absl::Status status = history_.Saw(effects);
    return status.ok() ? state_->CheckConsistency() : status;
  }

  void Hear(SessionId to, const std::shared_ptr<const v1::CoordinatorMessage>& message) {
    const auto known = sessions_.find(to);
    if (known == sessions_.end()) return;
    known->second.slots.Say(message);
    // Ranks that have joined hear of requests that they have not made.
    known->second.requests =
        std::max(known->second.requests, message->process_set_change().request());
    if (const v1::ProcessSetChange& change = message->process_set_change();
        !change.name().empty()) {
      known->second.by_name.erase(change.name());
      if (!change.ranks().empty()) known->second.by_name[change.name()] = change.process_set();
    }
    if (message->has_abort()) known->second.owes_report = message->abort().reforms();
    HearOfSchedule(known->second.schedules, *message);
  }

  static void HearOfSchedule(std::vector<KnownWorker::Schedule>& known,
                             const v1::CoordinatorMessage& message) {
    if (message.has_schedule() && !message.schedule().more())
      known.push_back({.id = message.schedule().id()});
    for (KnownWorker::Schedule& schedule : known) {
      if (message.freeze().id() == schedule.id) schedule.frozen = true;
      if (message.cut().id() == schedule.id) schedule.cut = true;
    }
  }

  void Enter(KnownWorker& known, const v1::CoordinatorMessage& message) {
    if (++known.generations > 1) ++counts_.reformed;
    known.generation = Generation{message.generation()};
    known.requests = 0;
    known.by_name.clear();
    known.schedules.clear();
    known.owes_report = false;
    known.rank = message.membership().rank();
    known.size = message.membership().size();
    known.slots.Begin(message.membership().slots());
    ++counts_.formed;
  }

  void Count(const v1::ProcessSetChange& change) {
    if (change.ranks_size() > 0) ++counts_.sets_added;
    if (change.name().empty()) return;
    if (change.code() != 0) {
      ++counts_.named_refused;
    } else {
      ++(change.ranks_size() > 0 ? counts_.named_added : counts_.named_ended);
    }
  }

  void Count(const v1::Schedule& schedule) {
    ++counts_.schedules;
    if (schedule.batches(0).tensors(0).memory() != v1::MEMORY_KIND_HOST) ++counts_.on_devices;
  }

  void Count(const v1::FusedBatch& batch, SessionId member) {
    ++counts_.planned;
    if (batch.staged()) ++counts_.staged;
    if (batch.process_set() != 0) ++counts_.in_sets;
    if (batch.specs_size() > 0) ++counts_.for_joined;
    if (batch.tensors_size() > 0 && batch.tensors(0) == "join") ++counts_.joins;
    if (batch.slots().empty()) return;
    ++counts_.by_slot;
    if (batch.process_set() != 0) ++counts_.by_slot_in_sets;
    if (KnownTo(member).generations > 1) ++counts_.by_slot_after_another;
  }

  const bool calm_, shares_;
  Random random_;
  RandomMessages messages_{random_, calm_};
  ServerOptions options_;
  std::unique_ptr<CoordinatorState> state_;
  HistoryChecker history_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::map<SessionId, KnownWorker> sessions_;  // open ones
  KnownWorker stranger_;
  int64_t last_session_ = 0;
  int64_t last_call_ = 0;
  FuzzCounts counts_;
};

TEST(CoordinatorFuzz, KeepsItsInvariantsWhateverComesIn) {
  FuzzCounts all;
  for (uint64_t seed = 1; seed <= Histories<uint64_t>(420); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Fuzz fuzz(seed);
    for (int step = 0; step < 1500; ++step) {
      ASSERT_THAT(fuzz.RandomStep(), IsOk()) << "step " << step;
    }
    ASSERT_THAT(fuzz.HealAndForm(), IsOk());
    const int64_t by_slot_before = fuzz.counts().by_slot_after_another;
    ASSERT_THAT(fuzz.LoseOneAndPlan(), IsOk());
    // What is executed by schedule is not planned.
    if (seed % 5 != 0) {
      ASSERT_GT(fuzz.counts().by_slot_after_another, by_slot_before);
    }
    all.Add(fuzz.counts());
  }
  // That it got anywhere at all.
  EXPECT_GT(all.formed, Histories(300));
  EXPECT_GT(all.reformed, Histories(80));
  EXPECT_GT(all.planned, Histories(10000));
  EXPECT_GT(all.sets_added, Histories(400));
  EXPECT_GT(all.named_added, Histories(400));
  EXPECT_GT(all.named_ended, Histories(100));
  EXPECT_GT(all.named_refused, Histories(100));
  EXPECT_GT(all.in_sets, Histories(400));
  EXPECT_GT(all.for_joined, Histories(600));
  EXPECT_GT(all.joins, Histories(1000));
  EXPECT_GT(all.by_slot, Histories(1000));
  EXPECT_GT(all.by_slot_in_sets, Histories(40));
  EXPECT_GT(all.by_slot_after_another, Histories(15));
  EXPECT_GT(all.reported_by_slot, Histories(4000));
  EXPECT_GT(all.slots_forgotten, Histories(1000));
  EXPECT_GT(all.schedules, Histories(100));
  EXPECT_GT(all.on_devices, Histories(20));
  EXPECT_GT(all.cuts, Histories(50));
  EXPECT_GT(all.staged, Histories(50));
  EXPECT_GT(all.shared, Histories(1000));
}

}  // namespace
}  // namespace coordd
