#include "common/protocol/written_keys.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"

namespace coordd {
namespace {

int64_t CostOf(absl::string_view key, absl::string_view value = "") {
  return static_cast<int64_t>(key.size() + value.size()) + WrittenKeys::kEntryBytes;
}

}  // namespace

bool WrittenKeys::IsLate(const std::string& key, const Version& version) const {
  if (!version.has_value()) return false;
  for (const auto& [prefix, deleted] : prefixes_)
    if (*version < deleted && absl::StartsWith(key, prefix)) return true;
  if (const auto value = values_.find(key); value != values_.end())
    return value->second.version > version;
  const auto gone = gone_.find(key);
  return gone != gone_.end() && gone->second.version > *version;
}

void WrittenKeys::Set(absl::string_view key, std::string value, Version version) {
  const std::string name(key);
  if (!IsLate(name, version)) return Put(name, {version, std::move(value)});
  const auto later = values_.find(name);
  if (later != values_.end()) later->second.sum.reset();
}

void WrittenKeys::Append(absl::string_view key, std::string value, Version version) {
  if (version.has_value()) return Set(key, std::move(value), version);
  Erase(std::string(key));  // the whole is not known
}

void WrittenKeys::Add(absl::string_view key, int64_t delta, int64_t sum, Version version) {
  const std::string name(key);
  const auto value = values_.find(name);
  const bool is_first = value == values_.end() && !gone_.contains(name);
  std::optional<int64_t> own;
  if (is_first) own = delta;
  if (value != values_.end() && value->second.sum.has_value()) own = *value->second.sum + delta;
  if (IsLate(name, version)) {
    if (value != values_.end()) value->second.sum = own;
    return;
  }
  Put(name, {version, absl::StrCat(sum), own});
}

void WrittenKeys::Delete(absl::string_view key, Version version) {
  const std::string name(key);
  if (IsLate(name, version)) return;
  Erase(name);
  if (version.has_value()) PutGone(name, {*version});
}

void WrittenKeys::DeletePrefix(absl::string_view prefix, Version version) {
  EraseAll(prefix, version);
  if (!version.has_value()) return;
  const std::string name(prefix);
  const auto [known, is_new] = prefixes_.try_emplace(name, *version);
  if (!is_new) {
    if (known->second > *version) return;
    gone_by_age_.erase(known->second);
    known->second = *version;
  } else {
    gone_bytes_ += CostOf(name);
  }
  gone_by_age_[*version] = {name, true};
  DropOldest();
}

void WrittenKeys::Forget(absl::string_view prefix) {
  if (!prefix.empty()) EraseAll(prefix, std::nullopt);
}

// Those written before; nullopt: all, and what is known of prefixes that begin with it.
void WrittenKeys::EraseAll(absl::string_view prefix, Version before) {
  const std::string first(prefix);
  std::vector<std::string> keys;
  for (auto it = values_.lower_bound(first);
       it != values_.end() && absl::StartsWith(it->first, prefix); ++it)
    if (!before.has_value() || it->second.version < before) keys.push_back(it->first);
  for (auto it = gone_.lower_bound(first); it != gone_.end() && absl::StartsWith(it->first, prefix);
       ++it)
    if (!before.has_value() || it->second.version < *before) keys.push_back(it->first);
  for (const std::string& key : keys) Erase(key);
  if (before.has_value()) return;
  for (auto it = prefixes_.lower_bound(first);
       it != prefixes_.end() && absl::StartsWith(it->first, prefix); it = prefixes_.erase(it)) {
    gone_by_age_.erase(it->second);
    gone_bytes_ -= CostOf(it->first);
  }
}

void WrittenKeys::Put(const std::string& key, Value value) {
  Erase(key);
  const int64_t cost = CostOf(key, value.value);
  if (bytes_ + cost <= kMaxBytes) {
    bytes_ += cost;
    values_.emplace(key, std::move(value));
  } else if (value.version.has_value()) {
    PutGone(key, {*value.version, /*forgotten=*/true});
  }
}

// REQUIRES: it is erased.
void WrittenKeys::PutGone(const std::string& key, const Gone& gone) {
  gone_.emplace(key, gone);
  gone_by_age_[gone.version] = {key, false};
  gone_bytes_ += CostOf(key);
  DropOldest();
}

void WrittenKeys::DropOldest() {
  while (gone_bytes_ > kMaxGoneBytes && !gone_by_age_.empty()) {
    const auto oldest = gone_by_age_.begin();
    const auto& [key, is_prefix] = oldest->second;
    gone_bytes_ -= CostOf(key);
    if (is_prefix) {
      prefixes_.erase(key);
    } else {
      gone_.erase(key);
    }
    gone_by_age_.erase(oldest);
  }
}

void WrittenKeys::Erase(const std::string& key) {
  if (const auto value = values_.find(key); value != values_.end()) {
    bytes_ -= CostOf(key, value->second.value);
    values_.erase(value);
  }
  if (const auto gone = gone_.find(key); gone != gone_.end()) {
    gone_bytes_ -= CostOf(key);
    gone_by_age_.erase(gone->second.version);
    gone_.erase(gone);
  }
}

WrittenReport WrittenKeys::Report() const {
  WrittenReport report;
  for (const auto& [key, value] : values_) {
    const bool is_sum = value.sum.value_or(0) != 0;
    if (value.sum == 0 && !value.version.has_value()) continue;  // as a key that is not there
    v1::StoredKey& one = report.stored.emplace_back();
    one.set_key(key);
    if (value.version.has_value()) ToProto(*value.version, one.mutable_version());
    if (!is_sum) one.set_value(value.value);
    if (is_sum) one.set_sum(*value.sum);
    int64_t total = 0;
    if (is_sum && value.version.has_value() && absl::SimpleAtoi(value.value, &total))
      one.set_total(total);
  }
  for (const auto& [key, gone] : gone_) {
    v1::DeletedKey& one = report.deleted.emplace_back();
    one.set_key(key);
    ToProto(gone.version, one.mutable_version());
    one.set_forgotten(gone.forgotten);
  }
  for (const auto& [prefix, version] : prefixes_) {
    v1::DeletedKey& one = report.deleted.emplace_back();
    one.set_key(prefix);
    ToProto(version, one.mutable_version());
    one.set_all(true);
  }
  return report;
}

}  // namespace coordd
