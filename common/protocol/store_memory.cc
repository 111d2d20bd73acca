#include "common/protocol/store_memory.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {

absl::Status InMemoryStore::Set(absl::string_view key, std::string value, absl::Time) {
  COORDD_RETURN_IF_ERROR(CheckKey(key));
  COORDD_RETURN_IF_ERROR(CheckValue(key, value.size()));
  {
    MutexLock lock(&mu_);
    values_[std::string(key)] = std::move(value);
  }
  changed_.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> InMemoryStore::Get(absl::string_view key, absl::Time deadline) {
  COORDD_RETURN_IF_ERROR(CheckKey(key));
  MutexLock lock(&mu_);
  const std::string wanted(key);
  auto is_set = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return values_.contains(wanted); };
  if (!clock_.Await(&mu_, &changed_, is_set, deadline)) {
    return absl::DeadlineExceededError(absl::StrCat("key ", key, " was not set in time"));
  }
  return values_[wanted];
}

absl::StatusOr<int64_t> InMemoryStore::Add(absl::string_view key, int64_t delta, absl::Time) {
  COORDD_RETURN_IF_ERROR(CheckKey(key));
  int64_t sum = 0;
  {
    MutexLock lock(&mu_);
    std::string& value = values_[std::string(key)];
    if (!value.empty() && !absl::SimpleAtoi(value, &sum)) {
      return absl::InvalidArgumentError(absl::StrCat("key ", key, " does not hold a number"));
    }
    sum += delta;
    value = absl::StrCat(sum);
  }
  changed_.NotifyAll();
  return sum;
}

absl::Status InMemoryStore::DeletePrefix(absl::string_view prefix, absl::Time) {
  COORDD_RETURN_IF_ERROR(CheckKey(prefix));
  MutexLock lock(&mu_);
  auto it = values_.lower_bound(std::string(prefix));
  while (it != values_.end() && absl::StartsWith(it->first, prefix)) it = values_.erase(it);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::string>> InMemoryStore::CompareSet(
    absl::string_view key, std::optional<std::string> expected, std::string desired, absl::Time) {
  COORDD_RETURN_IF_ERROR(CheckKey(key));
  COORDD_RETURN_IF_ERROR(CheckValue(key, desired.size()));
  {
    MutexLock lock(&mu_);
    const auto it = values_.find(std::string(key));
    std::optional<std::string> now;
    if (it != values_.end()) now = it->second;
    if (now != expected) return now;
    values_[std::string(key)] = desired;
  }
  changed_.NotifyAll();
  return desired;
}

absl::StatusOr<int64_t> InMemoryStore::Append(absl::string_view key, std::string value,
                                              absl::Time) {
  COORDD_RETURN_IF_ERROR(CheckKey(key));
  int64_t bytes = 0;
  {
    MutexLock lock(&mu_);
    const auto it = values_.find(std::string(key));
    const size_t before = it == values_.end() ? 0 : it->second.size();
    COORDD_RETURN_IF_ERROR(CheckValue(key, before + value.size()));
    std::string& now = values_[std::string(key)];
    now += value;
    bytes = static_cast<int64_t>(now.size());
  }
  changed_.NotifyAll();
  return bytes;
}

absl::StatusOr<bool> InMemoryStore::Delete(absl::string_view key, absl::Time) {
  COORDD_RETURN_IF_ERROR(CheckKey(key));
  MutexLock lock(&mu_);
  return values_.erase(std::string(key)) > 0;
}

absl::StatusOr<std::vector<std::optional<std::string>>> InMemoryStore::Look(
    const std::vector<std::string>& keys, bool values, absl::Time) {
  std::vector<std::optional<std::string>> found;
  MutexLock lock(&mu_);
  for (const std::string& key : keys) {
    COORDD_RETURN_IF_ERROR(CheckKey(key));
    const auto it = values_.find(key);
    if (it == values_.end()) {
      found.emplace_back();
    } else {
      found.emplace_back(values ? it->second : "");
    }
  }
  return found;
}

absl::StatusOr<int64_t> InMemoryStore::Count(absl::string_view prefix, absl::Time) {
  MutexLock lock(&mu_);
  int64_t count = 0;
  for (auto it = values_.lower_bound(std::string(prefix));
       it != values_.end() && absl::StartsWith(it->first, prefix); ++it)
    ++count;
  return count;
}

absl::Status PrefixStore::Set(absl::string_view key, std::string value, absl::Time deadline) {
  return store_.Set(absl::StrCat(prefix_, key), std::move(value), deadline);
}
absl::StatusOr<std::string> PrefixStore::Get(absl::string_view key, absl::Time deadline) {
  return store_.Get(absl::StrCat(prefix_, key), deadline);
}
absl::StatusOr<int64_t> PrefixStore::Add(absl::string_view key, int64_t delta,
                                         absl::Time deadline) {
  return store_.Add(absl::StrCat(prefix_, key), delta, deadline);
}
absl::Status PrefixStore::DeletePrefix(absl::string_view prefix, absl::Time deadline) {
  return store_.DeletePrefix(absl::StrCat(prefix_, prefix), deadline);
}

absl::StatusOr<std::optional<std::string>> PrefixStore::CompareSet(
    absl::string_view key, std::optional<std::string> expected, std::string desired,
    absl::Time deadline) {
  return store_.CompareSet(absl::StrCat(prefix_, key), std::move(expected), std::move(desired),
                           deadline);
}
absl::StatusOr<int64_t> PrefixStore::Append(absl::string_view key, std::string value,
                                            absl::Time deadline) {
  return store_.Append(absl::StrCat(prefix_, key), std::move(value), deadline);
}
absl::StatusOr<bool> PrefixStore::Delete(absl::string_view key, absl::Time deadline) {
  return store_.Delete(absl::StrCat(prefix_, key), deadline);
}
absl::StatusOr<std::vector<std::optional<std::string>>> PrefixStore::Look(
    const std::vector<std::string>& keys, bool values, absl::Time deadline) {
  std::vector<std::string> prefixed;
  prefixed.reserve(keys.size());
  for (const std::string& key : keys) prefixed.push_back(absl::StrCat(prefix_, key));
  return store_.Look(prefixed, values, deadline);
}
absl::StatusOr<int64_t> PrefixStore::Count(absl::string_view prefix, absl::Time deadline) {
  return store_.Count(absl::StrCat(prefix_, prefix), deadline);
}

}  // namespace coordd
