#include "server/generation/slot_cache.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace coordd {

SlotCache::SlotCache(int64_t capacity, ReadinessTable& table, KeptNames& names)
    : capacity_(capacity),
      table_(table),
      kept_(names),
      known_(static_cast<size_t>(table.members().size())),
      with_least_(known_.size()) {}

SlotCache::~SlotCache() { ForgetUpTo(given()); }

void SlotCache::ForgetUpTo(int64_t slot) {
  slots_.ForgetUpTo(slot, [this](auto& entry) {
    kept_.Set(kept_.bytes() - KeptNames::CostOf(entry.value.spec));
    table_.Forget(entry.value);
  });
}

bool SlotCache::Heard(int32_t member, int64_t known) {
  int64_t& before = known_[static_cast<size_t>(member)];
  if (known == before) return true;
  if (known < before || known > given()) return false;
  const bool was_least = std::exchange(before, known) == least_known_;
  if (!was_least || --with_least_ > 0) return true;
  least_known_ = *std::min_element(known_.begin(), known_.end());
  with_least_ = static_cast<size_t>(std::count(known_.begin(), known_.end(), least_known_));
  ForgetUnused();
  return true;
}

ReadinessTable::Known* SlotCache::Find(int64_t slot) {
  auto* entry = slots_.Find(slot);
  return entry == nullptr ? nullptr : &entry->value;
}

int64_t SlotCache::SlotOf(const ReadyTensor& tensor) {
  const int64_t in_use = std::max<int64_t>(0, given() - capacity_);  // those that are newer
  if (tensor.slot > in_use) return tensor.slot;
  const int64_t slot = slots_.SlotOf(tensor.spec.name);
  return slot > in_use && SameCall(slots_.Find(slot)->value.spec, tensor.spec) ? slot : 0;
}

int64_t SlotCache::Give(const ReadyTensor& tensor) {
  if (given() - least_known_ >= capacity_) return 0;
  if (!kept_.Add(KeptNames::CostOf(tensor.spec))) return 0;
  // Of what is gathered, fused_bytes has the parts of all.
  const bool gathers = tensor.spec.kind == CollectiveKind::kAllgather;
  const int64_t parts = gathers ? table_.members().size() : 1;
  ReadinessTable::Known known{.spec = tensor.spec, .slot = given() + 1};
  known.bytes = (tensor.fused_bytes + parts - 1) / parts;
  slots_.Add(tensor.spec.name, std::move(known));
  ForgetUnused();
  return given();
}

// Who knows n has forgotten n - C.
void SlotCache::ForgetUnused() {
  ForgetUpTo(least_known_ - capacity_);
  COORDD_CHECK(static_cast<int64_t>(slots_.size()) <= 2 * capacity_);
}

}  // namespace coordd
