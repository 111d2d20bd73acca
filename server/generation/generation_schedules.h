// What the ranks of a generation execute without asking: how a schedule begins, how it is broken
// and cut, and what has to wait for that. docs/design/schedules.md.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/device_order.h"
#include "server/generation/generation_messages.h"
#include "server/generation/negotiated_sets.h"
#include "server/generation/process_set_requests.h"
#include "server/generation/resume_merge.h"
#include "server/generation/schedule_table.h"
#include "server/model/effects.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe.
//
// No schedule begins while something waits for the end of one, so that what waits comes to its
// turn; and there is one schedule of tensors on devices at a time.
class GenerationSchedules {
 public:
  // What waits for the end of schedules: a join, or the answer to a request for a process set.
  struct Deferred {
    Rank rank;  // that joins
    std::optional<AgreedRequest> agreed;
  };

  // `wanted`: patterns become schedules. The others outlive it.
  GenerationSchedules(bool wanted, GenerationMessages& messages, NegotiatedSets& sets)
      : wanted_(wanted && messages.identity().schedules),
        messages_(messages),
        sets_(sets),
        table_(sets.kept()),
        devices_(sets.all()) {}

  const ScheduleTable& table() const { return table_; }
  bool empty() const { return table_.empty(); }
  bool defers() const { return !deferred_.empty(); }
  // What is planned of tensors on devices is staged.
  bool devices_are_busy() const { return devices_.busy(); }
  bool wants_finished() const { return devices_.asks(); }  // Resumed.wants_schedule_finished
  bool Supersedes(ProcessSetId set, Rank rank, absl::string_view name) const {
    return table_.Supersedes(set, rank, name);
  }

  // --- what is planned ---
  void Observe(SetNegotiation& set, const std::vector<ReadyTensor>& ready,
               const std::vector<std::vector<size_t>>& batches);
  // To be called behind the plan that completes the pattern. `most_staged`: the bytes of the
  // largest batch of it that was staged.
  void Planned(SetNegotiation& set, int64_t most_staged, Effects& effects);

  // --- what ranks say ---
  // A status breaks the protocol.
  absl::Status OnAck(Rank rank, const v1::ScheduleAck& ack) {
    return table_.Acknowledge(rank, ack.id());
  }
  absl::Status OnBreak(Rank rank, const v1::ScheduleBreak& message, Effects& effects);
  // Whether that was the last reply, and a schedule has been cut: what is Due may have changed.
  absl::StatusOr<bool> OnFreezeReply(Rank rank, const v1::FreezeReply& reply, Effects& effects);
  absl::Status OnFinished(Rank rank, const v1::ScheduleFinished& finished);
  void OnHeartbeat(Rank rank, const v1::Heartbeat& heartbeat, absl::Time now);

  // --- what waits ---
  // Whether it waits, and the schedules that it waits for end. What comes behind something that
  // waits waits too: answers keep their order.
  bool Defer(Deferred what, Effects& effects);
  std::optional<Deferred> TakeDue();  // the first one, if it waits no more
  // A join that waits is taken back. False: there is none.
  bool WithdrawJoin(Rank rank, absl::string_view reason, std::vector<FailedTensor>& failed);

  void EndSet(ProcessSetId set) { table_.EndSet(set); }
  void End();  // of the generation
  // One that there was before coordd was started again. INTERNAL: there cannot have been.
  absl::Status Restore(const ResumedGeneration::Scheduled& scheduled);
  void EndRestore(int64_t last_schedule);  // behind the last of them

  std::vector<PendingTensor> NewlyStalled(absl::Time now, absl::Duration age) {
    return table_.NewlyStalled(now, age);
  }
  void Forgive(absl::Duration gap) { table_.Forgive(gap); }
  absl::Status CheckConsistency() const;

 private:
  void NoteOnDevices(ProcessSetId set, int64_t bytes);
  void MaybeBegin(SetNegotiation& set, ScheduleDetector& detector, Effects& effects);
  void Announce(const ScheduleTable::Schedule& schedule, const std::vector<SessionId>& to,
                Effects& effects);
  void Freeze(const std::vector<const ScheduleTable::Schedule*>& schedules, absl::string_view why,
              Effects& effects);
  bool MustWait(const Deferred& what) const;
  bool ForgetJoin(Rank rank);
  void NoteLateness(Rank rank, const v1::Heartbeat& heartbeat);

  const bool wanted_;
  GenerationMessages& messages_;
  NegotiatedSets& sets_;
  ScheduleTable table_;
  DeviceOrder devices_;
  ProcessSetId last_on_devices_;  // the last set of which much was planned there
  std::deque<Deferred> deferred_;
};

}  // namespace coordd
