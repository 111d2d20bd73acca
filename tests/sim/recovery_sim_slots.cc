// Slots in the recovery simulator, as they pass between coordd and its workers.
#include <utility>

#include "common/protocol/slot_dictionary.h"
#include "tests/sim/recovery_sim.h"

namespace coordd {

void RecoverySim::HearOfSlots(int32_t w, const v1::CoordinatorMessage& message) {
  WorkerModel& worker = workers_[static_cast<size_t>(w)];
  if (message.has_membership()) {
    worker.old_slots = std::exchange(worker.slots, {});
    worker.last_slot = 0;
    worker.has_resumed = false;
  } else if (message.has_resumed()) {
    worker.slots.clear();
    worker.last_slot = 0;
    worker.has_resumed = true;
  }
  for (const v1::SlotBinding& binding : message.plan().bindings()) {
    if (binding.process_set() != 0) continue;
    worker.slots[binding.name()] = worker.last_slot = binding.slot();
  }
}

// A planted mistake: what had a slot in the generation before is reported by that, as far as such
// a number has been given since.
void RecoverySim::KeepBits(const WorkerModel& worker, v1::TensorsReady& ready) const {
  v1::TensorsReady kept;
  for (v1::TensorSpec& spec : *ready.mutable_tensors()) {
    const auto old = worker.old_slots.find(spec.name());
    if (spec.process_set() != 0 || old == worker.old_slots.end() ||
        old->second > worker.last_slot) {
      *kept.add_tensors() = std::move(spec);
      continue;
    }
    SlotBits packed = PackSlots({old->second});
    v1::CachedTensors& cached = *kept.add_cached();
    cached.set_known(worker.last_slot);
    cached.set_first_slot(packed.first);
    cached.set_bits(std::move(packed.bits));
  }
  for (v1::CachedTensors& cached : *ready.mutable_cached()) *kept.add_cached() = std::move(cached);
  ready = std::move(kept);
}

void RecoverySim::CountReports(const WorkerModel& worker, const v1::TensorsReady& ready) {
  for (const v1::CachedTensors& cached : ready.cached()) {
    ForEachSlot(cached.first_slot(), cached.bits(), [&](int64_t) {
      ++by_slot_;
      if (worker.generation > 1) ++by_slot_after_another_;
      if (worker.has_resumed) ++by_slot_after_resume_;
      return true;
    });
  }
}

}  // namespace coordd
