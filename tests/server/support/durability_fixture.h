// A CoordinatorState with something to remember; the disk is the test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/job/coordinator_state.h"
#include "server/model/job_record.h"
#include "tests/server/support/builders.h"
#include "tests/support/status_matchers.h"

namespace coordd {

class CoordinatorDurabilityTest : public ::testing::Test {
 protected:
  void SetUp() override { Restart(); }
  void TearDown() override { EXPECT_THAT(state_->CheckConsistency(), IsOk()); }

  // Another coordd on the same disk.
  Effects Restart() {
    const auto restored = ParseRecords({"c0ffee", Epoch{++epoch_}, disk_});
    EXPECT_THAT(restored, IsOk());
    Effects effects;
    state_ = std::make_unique<CoordinatorState>(options_, *restored, now_, effects);
    return effects;
  }
  Effects Do(const Inbound& in) {
    Effects effects;
    state_->Step(in, now_, effects);
    state_->Tick(now_, effects);
    return effects;
  }
  Effects Join(int64_t session, int32_t size, const std::string& token = "secret",
               int32_t max = -1) {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(absl::StrCat("w", session));
    message.mutable_join()->set_on_failure(on_failure_);
    message.mutable_join()->set_drains(true);
    message.mutable_join()->set_knows_slots(knows_slots_);
    message.mutable_join()->set_token(token);
    message.mutable_join()->mutable_limits()->set_min_workers(size);
    message.mutable_join()->mutable_limits()->set_max_workers(max < 0 ? size : max);
    return Do(SessionMessage{SessionId{session}, message});
  }
  // Worker w<rank + 1>, who was in generation 1, comes back on this stream; then its report.
  Effects Resume(int64_t session, int32_t rank, const v1::ResumeReport& report = {},
                 const std::string& cluster = "c0ffee", int64_t position = 0) {
    v1::WorkerMessage message;
    *message.mutable_join() = JoinOf(absl::StrCat("w", rank + 1));
    message.mutable_join()->set_drains(true);
    message.mutable_join()->set_knows_slots(knows_slots_);
    v1::Resume& resume = *message.mutable_join()->mutable_resume();
    resume.set_epoch(epoch_ - epochs_since_);
    resume.set_generation(1);
    resume.set_rank(rank);
    resume.set_position(position);
    resume.set_cluster_id(cluster);
    Effects joined = Do(SessionMessage{SessionId{session}, message});
    for (const Outgoing& out : joined.outgoing) {
      const auto* close = std::get_if<CloseSession>(&out);
      if (close != nullptr && close->session == SessionId{session}) return joined;
    }
    v1::WorkerMessage said = MessageOf(Epoch{epoch_ - epochs_since_}, Generation{1});
    *said.mutable_resume_report() = report;
    const Effects reported = Do(SessionMessage{SessionId{session}, said});
    joined.outgoing.insert(joined.outgoing.end(), reported.outgoing.begin(),
                           reported.outgoing.end());
    joined.persist.insert(joined.persist.end(), reported.persist.begin(), reported.persist.end());
    joined.events.insert(joined.events.end(), reported.events.begin(), reported.events.end());
    return joined;
  }
  static std::vector<int64_t> Resumed(const Effects& effects) {
    std::vector<int64_t> sessions;
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver != nullptr && deliver->message->has_resumed())
        sessions.push_back(ToInt(deliver->to.front()));
    }
    return sessions;
  }
  static v1::Abort Aborted(const Effects& effects) {
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver != nullptr && deliver->message->has_abort()) return deliver->message->abort();
    }
    return {};
  }
  static v1::CoordinatorMessage PlanAt(int64_t position, int64_t sequence, const char* tensor) {
    v1::CoordinatorMessage message;
    message.set_generation(1);
    message.set_position(position);
    v1::FusedBatch& batch = *message.mutable_plan()->add_batches();
    batch.set_sequence(sequence);
    batch.add_tensors(tensor);
    return message;
  }
  static v1::ResumeReport Launched(int64_t sequence, std::vector<v1::CoordinatorMessage> heard) {
    v1::ResumeReport report;
    report.add_lanes()->set_launched(sequence);
    for (v1::CoordinatorMessage& message : heard) {
      *report.add_received() = std::move(message);
      report.add_received_by(0);
    }
    return report;
  }
  Effects Leave(int64_t session, int64_t generation) {
    v1::WorkerMessage message = MessageOf(Epoch{epoch_}, Generation{generation});
    message.mutable_leave();
    return Do(SessionMessage{SessionId{session}, message});
  }
  Effects Pass(absl::Duration duration) {
    now_ += duration;
    Effects effects;
    state_->Tick(now_, effects);
    return effects;
  }
  // In turns, as coordd takes them: longer without one counts as sleep.
  Effects PassInTurns(absl::Duration duration) {
    Effects all;
    for (const absl::Time end = now_ + duration; now_ < end;) {
      Effects effects = Pass(std::min(options_.lease / 4, end - now_));
      all.outgoing.insert(all.outgoing.end(), effects.outgoing.begin(), effects.outgoing.end());
      all.persist.insert(all.persist.end(), effects.persist.begin(), effects.persist.end());
      all.events.insert(all.events.end(), effects.events.begin(), effects.events.end());
    }
    return all;
  }
  void Write(const Effects& effects) {
    for (const Persist& persist : effects.persist) {
      for (const StateWrite& write : persist.writes) {
        if (write.value.has_value()) {
          disk_[write.key] = *write.value;
        } else {
          disk_.erase(write.key);
        }
      }
    }
  }
  // Everything that asks for it is stored, and said to be.
  Effects Store(const Effects& effects) {
    Write(effects);
    Effects all;
    for (const Persist& persist : effects.persist) {
      if (persist.generation == Generation{0} && persist.call == CallId{0}) continue;
      Effects more = Do(Persisted{persist.job, persist.generation, {}, persist.call});
      all.outgoing.insert(all.outgoing.end(), more.outgoing.begin(), more.outgoing.end());
      all.persist.insert(all.persist.end(), more.persist.begin(), more.persist.end());
      all.events.insert(all.events.end(), more.events.begin(), more.events.end());
    }
    return all;
  }
  static std::vector<int64_t> Announced(const Effects& effects) {
    std::vector<int64_t> generations;
    for (const Outgoing& out : effects.outgoing) {
      const auto* deliver = std::get_if<Deliver>(&out);
      if (deliver != nullptr && deliver->message->has_membership()) {
        generations.push_back(deliver->message->generation());
      }
    }
    return generations;
  }
  static std::string Text(const Effects& effects, Event::Kind kind) {
    for (const Event& event : effects.events) {
      if (event.kind == kind) return event.text;
    }
    return "none";
  }
  static absl::Status Refusal(const Effects& effects) {
    for (const Outgoing& out : effects.outgoing) {
      if (const auto* close = std::get_if<CloseSession>(&out)) return close->status;
    }
    return absl::OkStatus();
  }
  v1::JobState Job() const {
    v1::ServerState state;
    state_->Describe("train", now_, &state);
    return state.jobs_size() == 1 ? state.jobs(0) : v1::JobState();
  }

  ServerOptions options_;
  v1::OnFailure on_failure_ = v1::ON_FAILURE_UNSPECIFIED;
  bool knows_slots_ = false;
  std::map<std::string, std::string> disk_;
  int64_t epoch_ = 0;
  int64_t epochs_since_ = 1;  // that in which those who come back have been
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::unique_ptr<CoordinatorState> state_;
};

}  // namespace coordd
