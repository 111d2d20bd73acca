#include "worker/gpu/nccl/known_memory.h"

namespace coordd {
namespace {

bool Overlap(KnownMemory::Region one, KnownMemory::Region other) {
  return one.data() < other.data() + other.size() && other.data() < one.data() + one.size();
}

}  // namespace

KnownMemory& KnownMemory::OfProcess() {
  static KnownMemory* const known = new KnownMemory;
  return *known;
}

void KnownMemory::Add(const NcclCommunicator& holder, ProcessSetId group, Region region) {
  MutexLock lock(&mu_);
  known_[{&holder, region.data()}] = {region, {group}};
}

void KnownMemory::Remove(const NcclCommunicator& holder, const std::byte* begin) {
  MutexLock lock(&mu_);
  known_.erase({&holder, begin});
}

void KnownMemory::NoteEnding(const NcclCommunicator& holder) {
  MutexLock lock(&mu_);
  for (auto it = known_.lower_bound({&holder, nullptr});
       it != known_.end() && it->first.first == &holder; ++it) {
    it->second.holder.ending = true;
  }
}

void KnownMemory::RemoveAll(const NcclCommunicator& holder) {
  MutexLock lock(&mu_);
  auto it = known_.lower_bound({&holder, nullptr});
  while (it != known_.end() && it->first.first == &holder) it = known_.erase(it);
}

bool KnownMemory::Knows(ProcessSetId group, Region region) {
  MutexLock lock(&mu_);
  for (const auto& [key, known] : known_)
    if (known.holder.group == group && Overlap(known.region, region)) return true;
  return false;
}

std::optional<KnownMemory::Holder> KnownMemory::HolderOf(Region region) {
  MutexLock lock(&mu_);
  std::optional<Holder> found;
  for (const auto& [key, known] : known_)
    if (Overlap(known.region, region) && (!found.has_value() || found->ending))
      found = known.holder;
  return found;
}

}  // namespace coordd
