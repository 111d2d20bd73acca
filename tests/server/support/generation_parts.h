// What a generation of three ranks consists of, without the GenerationState that composes it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/protocol/slot_dictionary.h"
#include "server/generation/generation_messages.h"
#include "server/generation/generation_plans.h"
#include "server/generation/generation_schedules.h"
#include "server/generation/negotiated_sets.h"
#include "server/generation/process_set_requests.h"
#include "server/generation/stall_watch.h"
#include "tests/server/support/builders.h"
#include "tests/support/start_time.h"

namespace coordd {

struct GenerationParts {
  static constexpr absl::Duration kWarning = absl::Minutes(1);
  static constexpr absl::Duration kAbort = absl::Minutes(2);

  explicit GenerationParts(int64_t schedule_steps = 0, int64_t slots = 4)
      : messages({"train", Epoch{1}, Generation{7}, true, true, slots},
                 {SessionId{10}, SessionId{11}, SessionId{12}}),
        sets(messages.by_rank(),
             {.set = {.bounds = {}, .schedule_steps = schedule_steps, .slots = slots},
              .stall_warning = kWarning,
              .stall_abort = kAbort}),
        requests(sets.all()),
        schedules(schedule_steps > 0, messages, sets),
        plans(1 << 20, messages, sets, schedules),
        comms(sets.sets()),
        devices(sets.sets()),
        stalls({kWarning, kAbort}, messages, {sets, requests, schedules, comms, devices}) {}

  // All ranks of the set submit it.
  void Submit(SetNegotiation& set, const std::string& name, absl::Time now = kStart) {
    for (Rank rank : set.members().Ranks())
      set.table().Report(rank, Gradient(name, {4}), now, failed);
    sets.Touch(set);
  }
  ProcessSetId AddSet(std::vector<int32_t> ranks) {
    const ProcessSetId id = *sets.sets().Add(Ranks(std::move(ranks)));
    sets.Add(id);
    return id;
  }
  const v1::CoordinatorMessage& Told(size_t index) const {
    return *std::get<Deliver>(effects.outgoing.at(index)).message;
  }
  const std::vector<SessionId>& ToldTo(size_t index) const {
    return std::get<Deliver>(effects.outgoing.at(index)).to;
  }

  GenerationMessages messages;
  NegotiatedSets sets;
  ProcessSetRequests requests;
  GenerationSchedules schedules;
  GenerationPlans plans;
  CommWaits comms;
  DeviceWaits devices;
  StallWatch stalls;
  std::vector<FailedTensor> failed;
  Effects effects;
};

inline v1::CachedTensors ReportOfSlots(const std::vector<int64_t>& slots, int64_t known) {
  SlotBits packed = PackSlots(slots);
  v1::CachedTensors cached;
  cached.set_known(known);
  cached.set_first_slot(packed.first);
  cached.set_bits(std::move(packed.bits));
  return cached;
}

}  // namespace coordd
