#include "server/job/key_table.h"

#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

// Two neighbours that have no more than this together become one: there are few parts for many
// keys, whatever was deleted.
constexpr size_t kFewInTwo = KeyTable::kMostInPart / 4;

int64_t CostOf(absl::string_view key, absl::string_view value) {
  return static_cast<int64_t>(key.size() + value.size());
}

// The first text behind all that begin with the prefix; "": there is none.
std::string Behind(absl::string_view prefix) {
  std::string behind(prefix);
  while (!behind.empty() && static_cast<unsigned char>(behind.back()) == 0xff) behind.pop_back();
  if (!behind.empty()) behind.back() = static_cast<char>(behind.back() + 1);
  return behind;
}

}  // namespace

KeyTable::KeyTable() { parts_.try_emplace(""); }

KeyTable::Parts::const_iterator KeyTable::PartOf(absl::string_view key) const {
  return std::prev(parts_.upper_bound(key));
}
KeyTable::Parts::iterator KeyTable::PartOf(absl::string_view key) {
  return std::prev(parts_.upper_bound(key));
}

void KeyTable::Change(Part& part, Sum by) {
  part.bytes += by.bytes;
  sum_ = {sum_.keys + by.keys, sum_.bytes + by.bytes};
}

const std::string* KeyTable::Find(absl::string_view key) const {
  const Values& values = PartOf(key)->second.values;
  const auto found = values.find(key);
  return found == values.end() ? nullptr : &found->second;
}

const std::string& KeyTable::Put(const std::string& key, std::string value) {
  Part& part = PartOf(key)->second;
  const auto [it, is_new] = part.values.try_emplace(key);
  const int64_t before = is_new ? 0 : CostOf(key, it->second);
  it->second = std::move(value);
  Change(part, {is_new ? 1 : 0, CostOf(key, it->second) - before});
  if (part.values.size() > kMostInPart)
    SplitAt(std::next(part.values.begin(), kMostInPart / 2)->first);
  return it->second;
}

bool KeyTable::Erase(absl::string_view key) {
  const auto at = PartOf(key);
  Part& part = at->second;
  const auto it = part.values.find(key);
  if (it == part.values.end()) return false;
  Change(part, {-1, -CostOf(it->first, it->second)});
  part.values.erase(it);
  Settle(key);
  return true;
}

KeyTable::Sum KeyTable::SumOf(absl::string_view prefix) const {
  if (prefix.empty()) return sum_;
  Sum sum;
  const std::string behind = Behind(prefix);
  for (auto at = PartOf(prefix); at != parts_.end() && (behind.empty() || at->first < behind);
       ++at) {
    const Part& part = at->second;
    const auto next = std::next(at);
    const bool is_whole = absl::StartsWith(at->first, prefix) && next != parts_.end() &&
                          absl::StartsWith(next->first, prefix);
    if (is_whole) {
      sum = {sum.keys + part.sum().keys, sum.bytes + part.bytes};
      continue;
    }
    for (auto it = part.values.lower_bound(prefix);
         it != part.values.end() && absl::StartsWith(it->first, prefix); ++it)
      sum = {sum.keys + 1, sum.bytes + CostOf(it->first, it->second)};
  }
  return sum;
}

// REQUIRES: the part has it.
void KeyTable::Move(Values::iterator from, Part& part, Part& into) {
  const int64_t bytes = CostOf(from->first, from->second);
  part.bytes -= bytes;
  into.bytes += bytes;
  auto node = part.values.extract(from);
  const bool is_last = into.values.empty() || into.values.rbegin()->first < node.key();
  into.values.insert(is_last ? into.values.end() : into.values.begin(), std::move(node));
  ++moved_;
}

// The part that begins with the key; it may be empty.
KeyTable::Parts::iterator KeyTable::SplitAt(const std::string& key) {
  const auto at = PartOf(key);
  if (at->first == key) return at;
  const auto behind = parts_.try_emplace(std::next(at), key);
  Part& left = at->second;
  while (!left.values.empty() && left.values.rbegin()->first >= key)
    Move(std::prev(left.values.end()), left, behind->second);
  return behind;
}

void KeyTable::MergeWithNext(Parts::iterator at) {
  const auto next = std::next(at);
  if (next == parts_.end()) return;
  Part& part = at->second;
  Part& other = next->second;
  if (part.values.empty()) {
    std::swap(part, other);
  } else if (part.values.size() + other.values.size() > kFewInTwo && !other.values.empty()) {
    return;
  }
  while (!other.values.empty()) Move(other.values.begin(), other, part);
  parts_.erase(next);
}

// After what has made the part of this key smaller.
void KeyTable::Settle(absl::string_view key) {
  const auto at = PartOf(key);
  MergeWithNext(at);
  if (at != parts_.begin()) MergeWithNext(std::prev(at));
}

KeyTable KeyTable::Take(absl::string_view prefix) {
  KeyTable taken;
  if (prefix.empty()) {
    std::swap(taken, *this);
    return taken;
  }
  const std::string behind = Behind(prefix);
  const auto end = behind.empty() ? parts_.end() : SplitAt(behind);
  for (auto at = SplitAt(std::string(prefix)); at != end;) {
    const Sum sum = at->second.sum();
    sum_ = {sum_.keys - sum.keys, sum_.bytes - sum.bytes};
    taken.sum_ = {taken.sum_.keys + sum.keys, taken.sum_.bytes + sum.bytes};
    taken.parts_.insert(taken.parts_.end(), parts_.extract(at++));
  }
  Settle(prefix);
  if (!behind.empty()) Settle(behind);
  return taken;
}

int64_t KeyTable::FreeFirst(int64_t most) {
  int64_t freed = 0;
  while (freed < most && sum_.keys > 0) {
    Part& first = parts_.begin()->second;
    for (; freed < most && !first.values.empty(); ++freed) {
      const auto it = first.values.begin();
      Change(first, {-1, -CostOf(it->first, it->second)});
      first.values.erase(it);
    }
    MergeWithNext(parts_.begin());
  }
  return freed;
}

void KeyTable::ForEach(
    const std::function<void(const std::string& key, const std::string& value)>& see) const {
  for (const auto& [from, part] : parts_)
    for (const auto& [key, value] : part.values) see(key, value);
}

absl::Status KeyTable::CheckConsistency() const {
  Sum sum;
  for (auto at = parts_.begin(); at != parts_.end(); ++at) {
    const auto& [from, part] = *at;
    const auto next = std::next(at);
    int64_t bytes = 0;
    for (const auto& [key, value] : part.values) {
      bytes += CostOf(key, value);
      if (key < from || (next != parts_.end() && key >= next->first))
        return absl::InternalError(absl::StrCat("key ", key, " is in a part of others"));
    }
    if (bytes != part.bytes) return absl::InternalError("bytes of a part of keys are miscounted");
    sum = {sum.keys + part.sum().keys, sum.bytes + bytes};
    if (part.values.size() > kMostInPart) return absl::InternalError("a part of keys is too large");
    if (next != parts_.end() && part.values.size() + next->second.values.size() <= kFewInTwo)
      return absl::InternalError("two parts of keys are too small");
  }
  if (parts_.empty() || !parts_.begin()->first.empty())
    return absl::InternalError("a key may be in no part");
  if (sum.keys != sum_.keys || sum.bytes != sum_.bytes)
    return absl::InternalError("keys are miscounted");
  return absl::OkStatus();
}

}  // namespace coordd
