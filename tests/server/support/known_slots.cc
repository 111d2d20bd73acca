#include "tests/server/support/known_slots.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace coordd {
namespace {

void Add(int32_t set, int64_t known, absl::Span<const int64_t> slots, v1::TensorsReady& ready) {
  v1::CachedTensors& cached = *ready.add_cached();
  cached.set_process_set(set);
  cached.set_known(known);
  if (slots.empty()) return;
  SlotBits packed = PackSlots(slots);
  cached.set_first_slot(packed.first);
  cached.set_bits(std::move(packed.bits));
}

}  // namespace

void KnownSlots::Say(const std::shared_ptr<const v1::CoordinatorMessage>& message) {
  const v1::ProcessSetChange& change = message->process_set_change();
  const bool ends_set =
      message->has_process_set_change() && change.code() == 0 && change.ranks().empty();
  if (ends_set || !message->plan().bindings().empty()) under_way_.push_back(message);
}

void KnownSlots::Hear(Random& random) {
  while (!under_way_.empty() && random.Below(4) > 0) HearNext();
}

void KnownSlots::HearAll() {
  while (!under_way_.empty()) HearNext();
}

void KnownSlots::HearNext() {
  const v1::CoordinatorMessage& message = *under_way_.front();
  if (message.has_process_set_change()) sets_.erase(message.process_set_change().process_set());
  for (const v1::SlotBinding& binding : message.plan().bindings()) {
    SlotDictionary<Nothing>& slots = sets_[binding.process_set()];
    slots.Add(binding.name(), {});
    COORDD_CHECK(slots.newest() == binding.slot());
    slots.ForgetUpTo(binding.slot() - capacity_);
  }
  under_way_.pop_front();
}

bool KnownSlots::Report(int32_t set, absl::string_view name, v1::TensorsReady& ready) {
  return ReportTogether(set, {std::string(name)}, ready);
}

bool KnownSlots::ReportTogether(int32_t set, absl::Span<const std::string> names,
                                v1::TensorsReady& ready) {
  const auto found = sets_.find(set);
  if (found == sets_.end()) return false;
  std::vector<int64_t> slots;
  for (const std::string& name : names) slots.push_back(found->second.SlotOf(name));
  std::sort(slots.begin(), slots.end());
  if (slots.empty() || slots[0] == 0) return false;
  Add(set, found->second.newest(), slots, ready);
  return true;
}

void KnownSlots::ReportAny(Random& random, v1::TensorsReady& ready) {
  for (const auto& [set, slots] : sets_) {
    if (random.Below(2) == 0) continue;
    std::vector<int64_t> some;
    for (int64_t slot = slots.oldest(); slot <= slots.newest(); ++slot)
      if (random.Below(3) == 0) some.push_back(slot);
    Add(set, slots.newest(), some, ready);
  }
}

}  // namespace coordd
