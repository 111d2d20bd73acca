// Tensors that ranks report alike: who is in is counted once for all of them.
#include <algorithm>

#include "common/base/check.h"
#include "server/generation/readiness_table.h"

namespace coordd {
namespace {

// With one there is nothing to be saved.
constexpr size_t kMinTensors = 2;
constexpr size_t kMaxSpareBundles = 64;

}  // namespace

bool ReadinessTable::BeginBundle(absl::Span<Known* const> tensors, const Slots& slots,
                                 Rank first_rank, absl::Time now) {
  if (tensors.size() < kMinTensors || tombstones_.size() > 0 || !joined_.empty() ||
      !HasRoomFor(static_cast<int64_t>(tensors.size()))) {
    return false;
  }
  for (const Known* known : tensors)
    if (known->pending != nullptr || !known->spec.group.empty()) return false;
  std::unique_ptr<Bundle> bundle = NewBundle(slots);
  for (Known* known : tensors) {
    Entry* entry = AddEntry(first_rank, known->spec, now);
    if (entry == nullptr) {  // one of its name is pending, which another slot or none means
      for (Entry* added : bundle->tensors) Erase(*added);
      return false;
    }
    entry->known = known;
    known->pending = entry;
    entry->bundle = bundle.get();
    bundle->tensors.push_back(entry);
  }
  bundles_.push_back(std::move(bundle));
  return true;
}

std::unique_ptr<ReadinessTable::Bundle> ReadinessTable::NewBundle(const Slots& slots) {
  std::unique_ptr<Bundle> bundle;
  if (spare_bundles_.empty()) {
    bundle = std::make_unique<Bundle>(members_);
  } else {
    bundle = std::move(spare_bundles_.back());
    spare_bundles_.pop_back();
  }
  bundle->at = bundles_.size();
  bundle->first_slot = slots.first;
  bundle->bits.assign(slots.bits.data(), slots.bits.size());
  return bundle;
}

ReadinessTable::Bundle* ReadinessTable::BundleOf(const Known& first, const Slots& slots) const {
  if (first.pending == nullptr || tombstones_.size() > 0) return nullptr;
  Bundle* bundle = first.pending->bundle;
  const bool is_it =
      bundle != nullptr && bundle->first_slot == slots.first && bundle->bits == slots.bits;
  return is_it ? bundle : nullptr;
}

std::optional<int64_t> ReadinessTable::ReportBundle(const Known& first, const Slots& slots,
                                                    const Reporters& reporters, absl::Time now) {
  Bundle* bundle = BundleOf(first, slots);
  if (bundle == nullptr || bundle->in.ContainsAnyOf(reporters.slice)) return std::nullopt;
  bundle->in.InsertAll(reporters.slice);
  return CountIn(*bundle, reporters.ranks, now);
}

std::optional<int64_t> ReadinessTable::ReportBundle(const Known& first, const Slots& slots,
                                                    Rank rank, absl::Time now) {
  Bundle* bundle = BundleOf(first, slots);
  if (bundle == nullptr || !bundle->in.Insert(rank)) return std::nullopt;
  return CountIn(*bundle, absl::MakeConstSpan(&rank, 1), now);
}

// The ranks have just come in.
int64_t ReadinessTable::CountIn(Bundle& bundle, absl::Span<const Rank> ranks, absl::Time now) {
  const auto tensors = static_cast<int64_t>(bundle.tensors.size());
  NoteLag(ranks, now - bundle.tensors.front()->first_report, tensors);
  if (bundle.in.full()) {
    SumUp(bundle);
    for (Entry* tensor : bundle.tensors) MoveToReady(*tensor);
    Drop(bundle);
  }
  Account();
  return tensors;
}

// What its tensors have not counted one by one: as ReportKnown of each of the ranks.
void ReadinessTable::SumUp(const Bundle& bundle) {
  const int64_t others = bundle.in.size() - 1;
  for (Entry* tensor : bundle.tensors) {
    const int64_t first = SizeBytes(tensor->spec);
    const int64_t each = tensor->known->bytes;
    tensor->max_bytes = others > 0 ? std::max(first, each) : first;
    tensor->sum_bytes =
        std::min(first, kMaxTensorBytes) + others * std::min<int64_t>(each, kMaxTensorBytes);
  }
}

void ReadinessTable::Dissolve(Bundle& bundle) {
  SumUp(bundle);
  for (Entry* tensor : bundle.tensors) {
    tensor->own = bundle.in;
    tensor->bundle = nullptr;
  }
  Drop(bundle);
}

void ReadinessTable::Drop(Bundle& bundle) {
  const size_t at = bundle.at;
  std::swap(bundles_[at], bundles_.back());
  bundles_[at]->at = at;
  std::unique_ptr<Bundle> spare = std::move(bundles_.back());
  bundles_.pop_back();
  if (spare_bundles_.size() == kMaxSpareBundles) return;
  spare->tensors.clear();
  spare->in.Clear();
  spare_bundles_.push_back(std::move(spare));
}

}  // namespace coordd
