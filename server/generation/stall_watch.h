// What a generation waits for too long: what is told of it, and what fails after that.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "server/generation/comm_waits.h"
#include "server/generation/device_waits.h"
#include "server/generation/generation_messages.h"
#include "server/generation/generation_schedules.h"
#include "server/generation/negotiated_sets.h"
#include "server/generation/process_set_requests.h"
#include "server/generation/readiness_table.h"
#include "server/model/effects.h"
#include "server/model/turn.h"

namespace coordd {

// PURE; `now` must not decrease. Not thread-safe.
//
// Each stalled tensor is told of once when it has waited for `warning`, and its end once, and so is
// each call of a comm, which fails by its own timeout, and each batch that stands on devices, which
// is NCCL's to end. Tensors that ranks execute without asking cannot fail: of them Hopeless tells.
class StallWatch {
 public:
  // All in which a generation can wait. They outlive the watch.
  struct Waits {
    NegotiatedSets& sets;
    ProcessSetRequests& requests;
    GenerationSchedules& schedules;
    CommWaits& comms;
    DeviceWaits& devices;
  };
  struct Patience {
    absl::Duration warning, abort;
  };
  StallWatch(Patience patience, GenerationMessages& messages, Waits waits)
      : patience_(patience), messages_(messages), waits_(waits) {}

  void Tick(const Turn& turn);
  absl::Time NextDeadline() const;
  // After anything that may have ended stalls.
  void NoteEnded(Effects& effects);

  // Pending since `now - age` or earlier, oldest first, at most `limit`: tensors, requests for
  // process sets under the name of what they ask for, calls of comms, and what stands on devices.
  std::vector<PendingTensor> Stalled(absl::Time now, absl::Duration age, size_t limit) const;
  // Others have waited for this rank until a warning was due. Of many that are missing only the
  // first few are.
  bool IsAwaited(Rank rank, absl::Time now) const;
  // Where its program is, a phrase for the errors of those who wait; empty: on its way.
  void SetWhereabouts(Rank rank, std::string where);
  // What some ranks have executed of a schedule and others have not for too long. The reason.
  std::optional<std::string> Hopeless(absl::Time now) const;

 private:
  void WatchTensors(const Turn& turn);
  void WatchRequests(const Turn& turn);
  void WatchJoin(const Turn& turn);
  void WatchSchedules(const Turn& turn);
  void WatchComms(const Turn& turn);
  void WatchDevices(const Turn& turn);
  void NoteGoneOn(int64_t& told, int64_t stalled, absl::string_view one, absl::string_view more,
                  Effects& effects);
  void TellBegan(const PendingTensor& oldest, int64_t count, const Turn& turn);
  std::string At(Rank rank) const;  // "; rank 1 is at ...", if that is known

  const Patience patience_;
  GenerationMessages& messages_;
  const Waits waits_;
  int64_t told_ = 0;                         // stalled tensors for which no end has been told
  int64_t told_calls_ = 0;                   // likewise of comms
  int64_t told_devices_ = 0;                 // likewise of what stands there
  std::map<Rank, std::string> whereabouts_;  // of those who others wait for
};

}  // namespace coordd
