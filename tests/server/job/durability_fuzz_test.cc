// coordd that dies at any moment, on a disk that is slow, full or gone: over all its lives the
// history keeps the invariants, and when the faults stop a generation forms. Planted bugs must be
// noticed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "server/job/coordinator_state.h"
#include "server/model/job_record.h"
#include "tests/server/support/builders.h"
#include "tests/server/support/invariants.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

enum class Bug { kNone, kAcknowledgeBeforeStored, kResetGenerations, kForgetJobs, kIgnoreFailures };

class World {
 public:
  World(uint64_t seed, Bug bug) : bug_(bug), random_(seed) {
    options_.max_jobs = 2;
    options_.ended_job_retention = absl::Minutes(1);
    (void)Restart();
  }

  absl::Status RandomStep() {
    const uint64_t what = Below(100);
    if (what < 30) return Join();
    if (what < 38) return End();
    if (what < 46) return Leave();
    if (what < 50) return HeartbeatAll();
    if (what < 75) return DiskGoesOn(Below(6) == 0);
    if (what < 77) return Crash();
    if (what < 92 && !away_.empty()) return ComeBack();
    now_ += absl::Milliseconds(static_cast<int64_t>(Below(1500)));
    if (Below(40) == 0) now_ += absl::Minutes(2);
    return Tick();
  }

  // No more faults: three fresh workers of a job get a generation.
  absl::Status HealAndForm() {
    for (absl::Status status = absl::OkStatus(); !sessions_.empty();) {
      status = End();
      if (!status.ok()) return status;
    }
    for (int i = 0; i < 40; ++i) {
      absl::Status status = DiskCatchesUp();
      if (status.ok()) status = Advance(absl::Seconds(1));
      if (!status.ok()) return status;
    }
    const int64_t before = formed_;
    for (int i = 0; i < 3; ++i) {
      v1::WorkerMessage message;
      *message.mutable_join() = JoinOf(absl::StrCat("fresh", i));
      message.mutable_join()->set_job("job0");
      message.mutable_join()->mutable_limits()->set_min_workers(3);
      message.mutable_join()->mutable_limits()->set_max_workers(3);
      absl::Status status = Step(SessionMessage{SessionId{++last_session_}, message});
      if (!status.ok()) return status;
    }
    absl::Status status = Advance(absl::Milliseconds(1));
    if (status.ok()) status = DiskCatchesUp();
    if (!status.ok()) return status;
    return formed_ == before + 3 ? absl::OkStatus() : absl::InternalError("nothing formed");
  }

  int64_t formed() const { return formed_; }    // members that heard of their generation
  int64_t resumed() const { return resumed_; }  // members that went on in it after a crash
  int64_t crashes() const { return crashes_; }

 private:
  uint64_t Below(uint64_t bound) { return random_.Below(bound); }

  absl::Status Restart() {
    std::map<std::string, std::string> records =
        bug_ == Bug::kForgetJobs && epoch_ > 0 ? std::map<std::string, std::string>() : disk_;
    auto restored = ParseRecords({"c0ffee", Epoch{++epoch_}, records});
    if (!restored.ok()) return restored.status();
    // Whatever coordd was told before it died: what is there now is stored.
    for (const auto& [name, record] : restored->jobs)
      if (record.running()) history_.Saw(Persisted{name, Generation{record.generation()}});
    if (bug_ == Bug::kResetGenerations) {
      for (auto& [name, record] : restored->jobs) record.set_generation(0);
    }
    Effects effects;
    state_ = std::make_unique<CoordinatorState>(options_, *restored, now_, effects);
    history_.SawRestart();
    away_.clear();
    for (const auto& [session, generation] : sessions_) away_.push_back(members_.at(session));
    sessions_.clear();
    members_.clear();
    writes_.clear();
    return Take(effects);
  }

  // Some of what was under way reaches the disk, in its order; nobody is told.
  absl::Status Crash() {
    ++crashes_;
    for (uint64_t left = Below(writes_.size() + 1); left > 0; --left) {
      Apply(writes_.front());
      writes_.pop_front();
    }
    return Restart();
  }

  void Apply(const Persist& persist) {
    for (const StateWrite& write : persist.writes) {
      if (write.value.has_value()) {
        disk_[write.key] = *write.value;
      } else {
        disk_.erase(write.key);
      }
    }
  }

  absl::Status DiskGoesOn(bool fails) {
    if (writes_.empty()) return absl::OkStatus();
    const Persist persist = writes_.front();
    writes_.pop_front();
    // After an error nothing or all of it may be there.
    if (!fails || Below(2) == 0) Apply(persist);
    if (persist.generation == Generation{0}) return absl::OkStatus();
    if (bug_ == Bug::kAcknowledgeBeforeStored) return absl::OkStatus();
    Persisted answer{persist.job, persist.generation};
    if (fails && bug_ != Bug::kIgnoreFailures) answer.status = absl::UnavailableError("disk");
    // The checker is told the truth.
    if (fails) {
      history_.Saw(Persisted{persist.job, persist.generation, absl::UnavailableError("disk")});
    } else {
      history_.Saw(answer);
    }
    Effects effects;
    state_->Step(answer, now_, effects);
    return Take(effects);
  }

  absl::Status DiskCatchesUp() {
    absl::Status status;
    while (status.ok() && !writes_.empty()) status = DiskGoesOn(false);
    return status;
  }

  // A member of before the crash resumes, unless its generation has ended meanwhile. Who waited
  // joins again: it may be a member of what was stored and not announced.
  absl::Status ComeBack() {
    const size_t index = Below(away_.size());
    const v1::Join join = away_[index];
    away_.erase(away_.begin() + static_cast<int64_t>(index));
    const SessionId session{++last_session_};
    sessions_[session] = join.resume().generation();
    members_[session] = join;
    v1::WorkerMessage hello;
    *hello.mutable_join() = join;
    absl::Status status = Step(SessionMessage{session, hello});
    if (!status.ok() || !sessions_.contains(session) || !join.has_resume()) return status;
    v1::WorkerMessage report;
    report.set_epoch(join.resume().epoch());
    report.set_generation(join.resume().generation());
    report.mutable_resume_report();
    return Step(SessionMessage{session, report});
  }

  absl::Status Join() {
    v1::WorkerMessage message;
    v1::Join* join = message.mutable_join();
    ++last_session_;
    *join = JoinOf(absl::StrCat("w", last_session_), absl::StrCat("node", last_session_ % 5));
    join->mutable_host()->add_topology(absl::StrCat("rack", last_session_ % 5 / 2));
    join->set_knows_topology(Below(20) > 0);
    const uint64_t job = Below(3);
    join->set_job(absl::StrCat("job", job));
    if (Below(30) == 0) join->set_token("wrong");
    join->mutable_limits()->set_min_workers(static_cast<int32_t>(job) + 1);
    join->mutable_limits()->set_max_workers(static_cast<int32_t>(job) + (Below(30) == 0 ? 2 : 1));
    sessions_[SessionId{last_session_}] = 0;
    members_[SessionId{last_session_}] = *join;
    return Step(SessionMessage{SessionId{last_session_}, message});
  }
  SessionId Any() {
    return std::next(sessions_.begin(), static_cast<int64_t>(Below(sessions_.size())))->first;
  }
  absl::Status End() {
    if (sessions_.empty()) return absl::OkStatus();
    const SessionId session = Any();
    sessions_.erase(session);
    return Step(SessionEnded{session, "gone"});
  }
  absl::Status Leave() {
    if (sessions_.empty()) return absl::OkStatus();
    const SessionId session = Any();
    v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{sessions_.at(session)});
    message.mutable_leave();
    return Step(SessionMessage{session, message});
  }
  absl::Status HeartbeatAll() {
    const auto sessions = sessions_;
    for (const auto& [session, generation] : sessions) {
      v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{generation});
      message.mutable_heartbeat();
      absl::Status status = Step(SessionMessage{session, message});
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Advance(absl::Duration by) {
    now_ += by;
    return Tick();
  }
  absl::Status Tick() {
    Effects effects;
    state_->Tick(now_, effects);
    return Take(effects);
  }
  absl::Status Step(const Inbound& in) {
    history_.Saw(in);
    Effects effects;
    state_->Step(in, now_, effects);
    absl::Status status = Take(effects);
    return status.ok() && Below(2) == 0 ? Tick() : status;
  }
  absl::Status Take(const Effects& effects) {
    for (const Outgoing& out : effects.outgoing) {
      if (const auto* close = std::get_if<CloseSession>(&out)) sessions_.erase(close->session);
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver == nullptr) continue;
      const v1::CoordinatorMessage& message = *deliver->message;
      if (message.has_resumed()) ++resumed_;
      if (message.has_resumed()) members_[deliver->to.front()].mutable_resume()->set_epoch(epoch_);
      if (!message.has_membership()) continue;
      ++formed_;
      sessions_[deliver->to.front()] = message.generation();
      v1::Resume& resume = *members_[deliver->to.front()].mutable_resume();
      resume.set_cluster_id("c0ffee");
      resume.set_epoch(epoch_);
      resume.set_generation(message.generation());
      resume.set_rank(message.membership().rank());
    }
    absl::Status status = history_.Saw(effects);
    if (status.ok()) status = state_->CheckConsistency();
    if (!status.ok()) return status;
    for (const Persist& persist : effects.persist) {
      writes_.push_back(persist);
      if (bug_ != Bug::kAcknowledgeBeforeStored || persist.generation == Generation{0}) continue;
      status = Step(Persisted{persist.job, persist.generation});
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const Bug bug_;
  Random random_;
  ServerOptions options_;
  std::unique_ptr<CoordinatorState> state_;
  HistoryChecker history_{/*durable=*/true};
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::map<std::string, std::string> disk_;
  std::deque<Persist> writes_;
  std::map<SessionId, int64_t> sessions_;  // with their generation
  std::map<SessionId, v1::Join> members_;  // with what they would resume
  std::vector<v1::Join> away_;             // since the last crash
  int64_t epoch_ = 0;
  int64_t last_session_ = 0;
  int64_t formed_ = 0;
  int64_t resumed_ = 0;
  int64_t crashes_ = 0;
};

// The first seed that notices; 0: none.
uint64_t NoticedAt(Bug bug, uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    World world(seed, bug);
    for (int step = 0; step < 600; ++step) {
      if (!world.RandomStep().ok()) return seed;
    }
  }
  return 0;
}

TEST(DurabilityFuzz, NoGenerationIsAnnouncedTwiceWhateverDies) {
  int64_t formed = 0;
  int64_t resumed = 0;
  int64_t crashes = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    World world(seed, Bug::kNone);
    for (int step = 0; step < 900; ++step) {
      ASSERT_THAT(world.RandomStep(), IsOk()) << "step " << step;
    }
    ASSERT_THAT(world.HealAndForm(), IsOk());
    formed += world.formed();
    resumed += world.resumed();
    crashes += world.crashes();
  }
  EXPECT_GT(formed, 4000);
  EXPECT_GT(resumed, 200);
  EXPECT_GT(crashes, 1000);
}

TEST(DurabilityFuzz, NoticesPlantedBugs) {
  EXPECT_NE(NoticedAt(Bug::kAcknowledgeBeforeStored, 50), 0u);
  EXPECT_NE(NoticedAt(Bug::kResetGenerations, 50), 0u);
  EXPECT_NE(NoticedAt(Bug::kForgetJobs, 50), 0u);
  EXPECT_NE(NoticedAt(Bug::kIgnoreFailures, 50), 0u);
}

}  // namespace
}  // namespace coordd
