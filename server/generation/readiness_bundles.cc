#include "server/generation/readiness_bundles.h"

#include <algorithm>
#include <utility>

namespace coordd {
namespace {

// With one there is nothing to be saved.
constexpr size_t kMinTensors = 2;
constexpr size_t kMaxSpareBundles = 64;

}  // namespace

bool TensorBundles::Begin(absl::Span<KnownTensor* const> tensors, const ReportedSlots& slots,
                          Rank first_rank, absl::Time now) {
  if (tensors.size() < kMinTensors) return false;
  for (const KnownTensor* known : tensors)
    if (known->pending != nullptr || !known->spec.group.empty()) return false;
  std::unique_ptr<ReadinessBundle> bundle = New(slots);
  for (KnownTensor* known : tensors) {
    ReadinessEntry* entry = entries_.Add(first_rank, known->spec, now);
    if (entry == nullptr) {  // one of its name is pending, which another slot or none means
      for (ReadinessEntry* added : bundle->tensors) entries_.Erase(*added);
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

std::unique_ptr<ReadinessBundle> TensorBundles::New(const ReportedSlots& slots) {
  std::unique_ptr<ReadinessBundle> bundle;
  if (spare_.empty()) {
    bundle = std::make_unique<ReadinessBundle>(members_);
  } else {
    bundle = std::move(spare_.back());
    spare_.pop_back();
  }
  bundle->at = bundles_.size();
  bundle->first_slot = slots.first;
  bundle->bits.assign(slots.bits.data(), slots.bits.size());
  return bundle;
}

ReadinessBundle* TensorBundles::Find(const KnownTensor& first, const ReportedSlots& slots) const {
  if (first.pending == nullptr) return nullptr;
  ReadinessBundle* bundle = first.pending->bundle;
  const bool is_it =
      bundle != nullptr && bundle->first_slot == slots.first && bundle->bits == slots.bits;
  return is_it ? bundle : nullptr;
}

// As if each of the ranks had reported each of the tensors.
void TensorBundles::SumUp(const ReadinessBundle& bundle) {
  const int64_t others = bundle.in.size() - 1;
  for (ReadinessEntry* tensor : bundle.tensors) {
    const int64_t first = SizeBytes(tensor->spec);
    const int64_t each = tensor->known->bytes;
    tensor->max_bytes = others > 0 ? std::max(first, each) : first;
    tensor->sum_bytes =
        std::min(first, kMaxTensorBytes) + others * std::min<int64_t>(each, kMaxTensorBytes);
  }
}

void TensorBundles::Dissolve(ReadinessBundle& bundle) {
  SumUp(bundle);
  for (ReadinessEntry* tensor : bundle.tensors) {
    tensor->own = bundle.in;
    tensor->bundle = nullptr;
  }
  Drop(bundle);
}

void TensorBundles::DissolveAll() {
  while (!bundles_.empty()) Dissolve(*bundles_.back());
}

void TensorBundles::Drop(ReadinessBundle& bundle) {
  const size_t at = bundle.at;
  std::swap(bundles_[at], bundles_.back());
  bundles_[at]->at = at;
  std::unique_ptr<ReadinessBundle> spare = std::move(bundles_.back());
  bundles_.pop_back();
  if (spare_.size() == kMaxSpareBundles) return;
  spare->tensors.clear();
  spare->in.Clear();
  spare_.push_back(std::move(spare));
}

void TensorBundles::Clear() {
  bundles_.clear();
  spare_.clear();
}

absl::Status TensorBundles::CheckConsistency() const {
  size_t bundled = 0;
  for (const auto& [id, entry] : entries_.by_age()) bundled += entry->bundle != nullptr ? 1 : 0;
  for (size_t i = 0; i < bundles_.size(); ++i) {
    const ReadinessBundle& bundle = *bundles_[i];
    for (const ReadinessEntry* tensor : bundle.tensors) {
      if (tensor->bundle != &bundle || tensor->known == nullptr || !tensor->spec.group.empty())
        return absl::InternalError("a bundle has a tensor that is no part of it");
    }
    if (bundle.at != i) return absl::InternalError("a bundle is out of place");
    bundled -= bundle.tensors.size();
  }
  if (bundled != 0) return absl::InternalError("a tensor's bundle does not know it");
  return absl::OkStatus();
}

}  // namespace coordd
