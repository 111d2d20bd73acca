#include "common/protocol/store_memory.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

absl::Status CheckKey(absl::string_view key) {
  if (!key.empty() && key.size() <= static_cast<size_t>(Store::kMaxKeyBytes))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("key of ", key.size(), " bytes, expected 1 to ", Store::kMaxKeyBytes));
}

}  // namespace

absl::Status InMemoryStore::Set(absl::string_view key, std::string value, absl::Time) {
  COORDD_RETURN_IF_ERROR(CheckKey(key));
  if (value.size() > static_cast<size_t>(kMaxValueBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("value of key ", key, " has ", value.size(),
                                                   " bytes, expected at most ", kMaxValueBytes));
  }
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

}  // namespace coordd
