#include "worker/coordinator/remembering_store.h"

#include <utility>

#include "absl/strings/match.h"
#include "common/base/status_macros.h"

namespace coordd {

absl::Status RememberingStore::Set(absl::string_view key, std::string value, absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(store_.Set(key, value, deadline));
  Remember(key, std::move(value));
  return absl::OkStatus();
}

void RememberingStore::Remember(absl::string_view key, std::string value) {
  MutexLock lock(&mu_);
  const int64_t cost = static_cast<int64_t>(key.size() + value.size());
  auto entry = entries_.find(std::string(key));
  if (entry != entries_.end())
    bytes_ -= static_cast<int64_t>(key.size() + entry->second.value.size());
  if (bytes_ + cost > kMaxBytes) {
    if (entry != entries_.end()) entries_.erase(entry);
    return;
  }
  bytes_ += cost;
  entries_[std::string(key)] = Entry{false, std::move(value), 0};
}

absl::StatusOr<std::string> RememberingStore::Get(absl::string_view key, absl::Time deadline) {
  return store_.Get(key, deadline);
}

absl::StatusOr<int64_t> RememberingStore::Add(absl::string_view key, int64_t delta,
                                              absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(const int64_t sum, store_.Add(key, delta, deadline));
  MutexLock lock(&mu_);
  const auto found = entries_.find(std::string(key));
  if (found != entries_.end() && !found->second.is_sum) {
    // A number that it had set: what it was just now is all there is to say.
    found->second.value = std::to_string(sum);
    return sum;
  }
  if (found == entries_.end()) bytes_ += static_cast<int64_t>(key.size());
  Entry& entry = entries_[std::string(key)];
  entry.is_sum = true;
  entry.sum += delta;
  return sum;
}

absl::Status RememberingStore::DeletePrefix(absl::string_view prefix, absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(store_.DeletePrefix(prefix, deadline));
  Erase(prefix);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> RememberingStore::CompareSet(
    absl::string_view key, std::optional<std::string> expected, std::string desired,
    absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(std::optional<std::string> now,
                          store_.CompareSet(key, std::move(expected), desired, deadline));
  if (now == desired) Remember(key, std::move(desired));
  return now;
}

absl::StatusOr<int64_t> RememberingStore::Append(absl::string_view key, std::string value,
                                                 absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(const int64_t bytes, store_.Append(key, std::move(value), deadline));
  EraseKey(key);
  return bytes;
}

absl::StatusOr<bool> RememberingStore::Delete(absl::string_view key, absl::Time deadline) {
  COORDD_ASSIGN_OR_RETURN(const bool was_there, store_.Delete(key, deadline));
  EraseKey(key);
  return was_there;
}

absl::StatusOr<std::vector<std::optional<std::string>>> RememberingStore::Look(
    const std::vector<std::string>& keys, bool values, absl::Time deadline) {
  return store_.Look(keys, values, deadline);
}

absl::StatusOr<int64_t> RememberingStore::Count(absl::string_view prefix, absl::Time deadline) {
  return store_.Count(prefix, deadline);
}

void RememberingStore::EraseKey(absl::string_view key) {
  MutexLock lock(&mu_);
  const auto entry = entries_.find(std::string(key));
  if (entry == entries_.end()) return;
  bytes_ -= static_cast<int64_t>(entry->first.size() + entry->second.value.size());
  entries_.erase(entry);
}

void RememberingStore::Forget(absl::string_view prefix) {
  if (!prefix.empty()) Erase(prefix);
}

void RememberingStore::Erase(absl::string_view prefix) {
  MutexLock lock(&mu_);
  auto entry = entries_.lower_bound(std::string(prefix));
  while (entry != entries_.end() && absl::StartsWith(entry->first, prefix)) {
    bytes_ -= static_cast<int64_t>(entry->first.size() + entry->second.value.size());
    entry = entries_.erase(entry);
  }
}

std::vector<v1::StoredKey> RememberingStore::Stored() const {
  std::vector<v1::StoredKey> stored;
  MutexLock lock(&mu_);
  for (const auto& [key, entry] : entries_) {
    if (entry.is_sum && entry.sum == 0) continue;  // as a key that is not there
    v1::StoredKey& one = stored.emplace_back();
    one.set_key(key);
    if (entry.is_sum) {
      one.set_sum(entry.sum);
    } else {
      one.set_value(entry.value);
    }
  }
  return stored;
}

}  // namespace coordd
