// What HistoryChecker demands of slots, the numbers that stand for tensors.
#include <algorithm>

#include "common/base/status_macros.h"
#include "tests/server/support/invariants.h"

namespace coordd {

std::vector<std::string> HistoryChecker::NamesIn(const SlotNames& slots,
                                                 const v1::FusedBatch& batch) {
  std::vector<std::string> names(batch.tensors().begin(), batch.tensors().end());
  for (int64_t slot : batch.slots()) {
    const auto name = slots.find({batch.process_set(), slot});
    if (name == slots.end()) return {};
    names.push_back(name->second);
  }
  return names;
}

absl::Status HistoryChecker::SawSlotsKept(Member& member, int64_t slots) {
  if (slots < 0 || (slots > 0 && !member.knows_slots))
    return Broken("rank ", member.rank, " is to keep ", slots, " slots, and does not know them");
  member.slots_kept = slots;
  member.last_slot.clear();
  return absl::OkStatus();
}

absl::Status HistoryChecker::SawSlots(const Member& member, const v1::FusedBatch& batch) {
  if (batch.slots().empty()) return absl::OkStatus();
  if (!batch.tensors().empty()) return Broken("a batch has names and slots");
  const auto last = member.last_slot.find(batch.process_set());
  const int64_t newest = last == member.last_slot.end() ? 0 : last->second;
  for (int64_t slot : batch.slots()) {
    if (slot > newest || slot <= newest - member.slots_kept) {
      return Broken("slot ", slot, " of process set ", batch.process_set(),
                    " is planned, of which rank ", member.rank,
                    absl::StrCat(" has heard up to ", newest, " and keeps "), member.slots_kept);
    }
  }
  return absl::OkStatus();
}

absl::Status HistoryChecker::SawBindings(Member& member, GenerationRecord& generation,
                                         const v1::CollectivePlan& plan) {
  for (const v1::SlotBinding& binding : plan.bindings()) {
    const std::string what =
        absl::StrCat("slot ", binding.slot(), " of process set ", binding.process_set());
    if (member.slots_kept == 0 || binding.slot() != ++member.last_slot[binding.process_set()])
      return Broken(what, " is given to rank ", member.rank, " out of its order");
    const bool is_planned =
        std::any_of(plan.batches().begin(), plan.batches().end(), [&](const auto& batch) {
          const auto& names = batch.tensors();
          return batch.process_set() == binding.process_set() &&
                 std::find(names.begin(), names.end(), binding.name()) != names.end();
        });
    if (!is_planned) return Broken(what, " is given to a tensor that the plan does not name");
    const auto [slot, is_new] =
        generation.slots.try_emplace({binding.process_set(), binding.slot()}, binding.name());
    if (!is_new && slot->second != binding.name())
      return Broken(what, " is ", slot->second, " for one rank and ", binding.name(),
                    " for another");
  }
  return absl::OkStatus();
}

}  // namespace coordd
