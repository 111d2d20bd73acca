// What slots stand for: numbers that abbreviate the specs of tensors between coordd and the members
// of one process set (docs/design/control.md, "Gear 2: slots").
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace coordd {

// How many slots coordd proposes unless it is told otherwise, and the most that a worker agrees to.
inline constexpr int64_t kDefaultSlots = 4096;
inline constexpr int64_t kMaxSlots = 1 << 16;

// PURE. Numbers 1, 2, 3, … in the order in which they are given, each to a tensor's name and what
// either side knows of it. The oldest are forgotten first, so what is known is a window. A name may
// have several numbers, from when its spec has changed; the newest is the one to be used.
template <typename Value>
class SlotDictionary {
 public:
  struct Entry {
    std::string name;
    Value value;
  };

  int64_t newest() const { return newest_; }  // 0: none was given
  int64_t oldest() const { return newest_ - static_cast<int64_t>(entries_.size()) + 1; }
  size_t size() const { return entries_.size(); }

  // Gives the next number. References to other entries stay valid.
  Entry& Add(absl::string_view name, Value value) {
    Entry& entry = entries_.emplace_back(Entry{std::string(name), std::move(value)});
    by_name_.erase(entry.name);  // the key is a view of an older entry's name
    by_name_.emplace(entry.name, ++newest_);
    return entry;
  }
  // nullptr: it is forgotten, or was not given yet.
  Entry* Find(int64_t slot) {
    if (slot < oldest() || slot > newest_) return nullptr;
    return &entries_[static_cast<size_t>(slot - oldest())];
  }
  // The newest number of the name; 0: none.
  int64_t SlotOf(absl::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? 0 : found->second;
  }
  // Forgets all numbers up to this one, and returns how many these are. Calls `forget` with each
  // entry.
  template <typename F>
  int64_t ForgetUpTo(int64_t slot, F forget) {
    int64_t forgotten = 0;
    for (; !entries_.empty() && oldest() <= slot; ++forgotten) {
      Entry& entry = entries_.front();
      const auto newest = by_name_.find(entry.name);
      if (newest->second == oldest()) by_name_.erase(newest);
      forget(entry);
      entries_.pop_front();
    }
    return forgotten;
  }
  int64_t ForgetUpTo(int64_t slot) {
    return ForgetUpTo(slot, [](const Entry&) {});
  }

 private:
  int64_t newest_ = 0;
  std::deque<Entry> entries_;
  absl::flat_hash_map<absl::string_view, int64_t> by_name_;
};

// A set of slots as messages carry it: the smallest, and a bit for each from there on, the lowest
// bit of each byte first.
struct SlotBits {
  int64_t first = 0;
  std::string bits;
};
SlotBits PackSlots(absl::Span<const int64_t> slots);  // REQUIRES: at least one, all at least 1

// Calls `each` with every slot, in order, until it returns false; returns whether it never did.
template <typename F>
bool ForEachSlot(int64_t first, absl::string_view bits, F each) {
  for (size_t byte = 0; byte < bits.size(); ++byte) {
    for (auto rest = static_cast<unsigned char>(bits[byte]); rest != 0;
         rest = static_cast<unsigned char>(rest & (rest - 1))) {
      if (!each(first + static_cast<int64_t>(byte) * 8 + __builtin_ctz(rest))) return false;
    }
  }
  return true;
}

}  // namespace coordd
