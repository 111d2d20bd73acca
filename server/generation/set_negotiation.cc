#include "server/generation/set_negotiation.h"

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

Rank FirstOf(Rank rank) { return rank; }
Rank FirstOf(const ReadinessTable::Reporters& reporters) { return reporters.ranks.front(); }
int64_t CountOf(Rank) { return 1; }
int64_t CountOf(const ReadinessTable::Reporters& reporters) {
  return static_cast<int64_t>(reporters.ranks.size());
}

// Ranks' lag, reckoned for all neighbours with the same delay at once.
class LagOfMany {
 public:
  LagOfMany(ReadinessTable& table, absl::Span<const Rank> ranks) : table_(table), ranks_(ranks) {}

  void Add(absl::Duration delay) {
    if (delay != delay_) Flush();
    delay_ = delay;
    ++tensors_;
  }
  void Flush() { table_.NoteLag(ranks_, delay_, std::exchange(tensors_, 0)); }

 private:
  ReadinessTable& table_;
  const absl::Span<const Rank> ranks_;
  absl::Duration delay_ = absl::ZeroDuration();  // of the last `tensors_`
  int64_t tensors_ = 0;
};

absl::Duration DelayOf(const ReadinessTable::Known& known, absl::Time now) {
  return known.pending != nullptr ? ReadinessTable::DelayOf(known, now) : absl::ZeroDuration();
}

}  // namespace

SetNegotiation::SetNegotiation(ProcessSetId id, bool is_pair, const MemberList& members,
                               std::vector<SessionId> sessions, const Options& options,
                               ReadinessTotals& totals)
    : id_(id),
      is_pair_(is_pair),
      has_slots_(!is_pair && options.slots > 0),
      sessions_(std::move(sessions)),
      table_(is_pair ? ProcessSetId{0} : id, members, options.bounds, totals),
      slots_(is_pair ? 0 : options.slots, table_, totals.kept),
      on_host_(options.schedule_steps, KeptNames::Hold(totals.kept)),
      on_devices_(options.schedule_steps, KeptNames::Hold(totals.kept)) {}

bool SetNegotiation::Heard(Rank rank, int64_t known) {
  const int32_t member = members().IndexOf(rank);
  return member >= 0 && slots_.Heard(member, known);
}

bool SetNegotiation::HaveHeard(const std::vector<Rank>& ranks, int64_t known) const {
  return slots_.AllHaveHeard(known) || absl::c_all_of(ranks, [&](Rank rank) {
           return slots_.HasHeard(members().IndexOf(rank), known);
         });
}

template <typename Reporters>
std::optional<int64_t> SetNegotiation::CountBundle(const v1::CachedTensors& cached,
                                                   const Reporters& who, absl::Time now) {
  const ReadinessTable::Slots slots{cached.first_slot(), cached.bits()};
  ReadinessTable::Known* first = slots_.Find(slots.first);
  if (first == nullptr) return std::nullopt;
  std::optional<int64_t> tensors = table_.ReportBundle(*first, slots, who, now);
  if (!tensors.has_value() && first->pending == nullptr) {
    std::vector<ReadinessTable::Known*> all;
    const bool known = ForEachSlot(slots.first, slots.bits, [&](int64_t slot) {
      all.push_back(slots_.Find(slot));
      return all.back() != nullptr;
    });
    if (known && table_.BeginBundle(all, slots, FirstOf(who), now))
      tensors = table_.ReportBundle(*first, slots, who, now);
  }
  if (!tensors.has_value()) return std::nullopt;
  return *tensors * CountOf(who);
}

std::optional<int64_t> SetNegotiation::CountAlike(const v1::CachedTensors& cached, Rank who,
                                                  absl::Time now) {
  return CountBundle(cached, who, now);
}

std::optional<int64_t> SetNegotiation::CountAlike(const v1::CachedTensors& cached,
                                                  const ReadinessTable::Reporters& who,
                                                  absl::Time now) {
  return CountBundle(cached, who, now);
}

// Empty: something is wrong, or there is more to do than to count.
std::vector<ReadinessTable::Known*> SetNegotiation::Shared(const v1::CachedTensors& cached,
                                                           const ReadinessTable::Reporters& who) {
  std::vector<ReadinessTable::Known*> found;
  found.reserve(8 * cached.bits().size());
  // Two slots of one tensor: the second time it is submitted again while it is pending.
  absl::flat_hash_set<absl::string_view> new_names;
  const bool all = ForEachSlot(cached.first_slot(), cached.bits(), [&](int64_t slot) {
    ReadinessTable::Known* known = slots_.Find(slot);
    if (known == nullptr || !table_.CanShare(who, *known)) return false;
    found.push_back(known);
    return known->pending != nullptr || new_names.insert(known->spec.name).second;
  });
  const bool has_room = table_.HasRoomFor(static_cast<int64_t>(new_names.size()));
  return all && has_room ? found : std::vector<ReadinessTable::Known*>();
}

std::optional<int64_t> SetNegotiation::CountShared(const v1::CachedTensors& cached,
                                                   const ReadinessTable::Reporters& who,
                                                   absl::Time now,
                                                   std::vector<FailedTensor>& failed) {
  const std::vector<ReadinessTable::Known*> tensors = Shared(cached, who);
  if (tensors.empty()) return std::nullopt;
  LagOfMany lag(table_, who.ranks);
  for (ReadinessTable::Known* known : tensors) {
    lag.Add(DelayOf(*known, now));
    table_.ReportShared(who, *known, now, failed);
  }
  lag.Flush();
  return static_cast<int64_t>(tensors.size() * who.ranks.size());
}

SetNegotiation::Counted SetNegotiation::Count(const v1::CachedTensors& cached, Rank who,
                                              bool may_count, absl::Time now,
                                              absl::FunctionRef<void(ReadinessTable::Known&)> other,
                                              std::vector<FailedTensor>& failed) {
  Counted counted;
  LagOfMany lag(table_, absl::MakeConstSpan(&who, 1));
  ForEachSlot(cached.first_slot(), cached.bits(), [&](int64_t slot) {
    ReadinessTable::Known* known = slots_.Find(slot);
    if (known == nullptr) {
      counted.unknown = slot;
      return false;
    }
    const absl::Duration delay = DelayOf(*known, now);
    if (may_count && table_.ReportPending(who, *known, failed)) {
      lag.Add(delay);
      ++counted.tensors;
    } else {
      lag.Flush();
      other(*known);
    }
    return true;
  });
  lag.Flush();
  return counted;
}

int64_t SetNegotiation::FillBatch(const std::vector<ReadyTensor>& ready,
                                  const std::vector<size_t>& indices, bool by_slots,
                                  std::vector<const ReadyTensor*>& unknown, v1::FusedBatch* batch) {
  bool with_specs = false;
  for (size_t index : indices) with_specs = with_specs || ready[index].for_joined;
  by_slots = by_slots && has_slots_ && !with_specs;
  const size_t known_before = unknown.size();
  for (size_t index : indices) {
    if (!by_slots) break;
    if (const int64_t slot = slots_.SlotOf(ready[index]); slot != 0) {
      batch->add_slots(slot);
    } else {
      unknown.push_back(&ready[index]);
    }
  }
  constexpr int64_t kSlotBytes = 3;  // the usual
  if (by_slots && unknown.size() == known_before) return kSlotBytes * batch->slots_size();
  batch->clear_slots();
  int64_t bytes = 0;
  for (size_t index : indices) {
    const TensorSpec& spec = ready[index].spec;
    batch->add_tensors(spec.name);
    bytes += static_cast<int64_t>(spec.name.size());
    if (!with_specs) continue;
    ToProto(spec, batch->add_specs());
    bytes += static_cast<int64_t>(batch->specs(batch->specs_size() - 1).ByteSizeLong());
  }
  return bytes;
}

void SetNegotiation::Bind(const std::vector<const ReadyTensor*>& unknown,
                          v1::CollectivePlan* plan) {
  int64_t bytes = 0;
  for (const ReadyTensor* tensor : unknown) {
    bytes += static_cast<int64_t>(tensor->spec.name.size());
    // The others get theirs when they are planned next.
    const int64_t slot = bytes <= kPlanMessageBytes ? slots_.Give(*tensor) : 0;
    if (slot == 0) break;
    v1::SlotBinding* binding = plan->add_bindings();
    binding->set_process_set(ToInt(id_));
    binding->set_slot(slot);
    binding->set_name(tensor->spec.name);
  }
}

int64_t SetNegotiation::TakeForgotten() {
  const int64_t forgotten = slots_.forgotten();
  return forgotten - std::exchange(slots_forgotten_, forgotten);
}

void SetNegotiation::ResetDetectors() {
  on_host_.Reset();
  on_devices_.Reset();
}

}  // namespace coordd
