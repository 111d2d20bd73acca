#include "worker/protocol/slot_table.h"

#include <utility>

namespace coordd {

bool SlotTable::Learn(int64_t slot, const SharedSpec& spec) {
  Set& set = sets_[spec->process_set];
  if (capacity_ <= 0 || slot != set.slots.newest() + 1) return false;
  set.slots.Add(spec->name, spec);
  set.slots.ForgetUpTo(slot - capacity_);
  return true;
}

const std::string* SlotTable::NameOf(ProcessSetId process_set, int64_t slot) {
  const auto set = sets_.find(process_set);
  if (set == sets_.end()) return nullptr;
  const auto* entry = set->second.slots.Find(slot);
  return entry == nullptr ? nullptr : &entry->name;
}

bool SlotTable::Report(const TensorSpec& spec) {
  const auto found = sets_.find(spec.process_set);
  if (found == sets_.end()) return false;
  Set& set = found->second;
  const int64_t slot = set.slots.SlotOf(spec.name);
  if (slot == 0 || *set.slots.Find(slot)->value != spec) return false;
  set.reported.push_back(slot);
  return true;
}

void SlotTable::Mention(ProcessSetId process_set) {
  const auto found = sets_.find(process_set);
  if (found != sets_.end()) found->second.mentioned = true;
}

std::vector<v1::CachedTensors> SlotTable::Take() {
  std::vector<v1::CachedTensors> taken;
  for (auto& [id, set] : sets_) {
    const bool news = std::exchange(set.mentioned, false) && set.known_told < set.slots.newest();
    if (set.reported.empty() && !news) continue;
    v1::CachedTensors& cached = taken.emplace_back();
    cached.set_process_set(ToInt(id));
    cached.set_known(set.known_told = set.slots.newest());
    if (set.reported.empty()) continue;
    SlotBits packed = PackSlots(set.reported);
    cached.set_first_slot(packed.first);
    cached.set_bits(std::move(packed.bits));
    set.reported.clear();
  }
  return taken;
}

void SlotTable::Clear(int64_t capacity) {
  sets_.clear();
  capacity_ = capacity;
}

}  // namespace coordd
