#include "server/job/store_return.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"

namespace coordd {

void StoreReturn::Came(SessionId session) {
  if (under_way_) reported_[session] = false;
}

void StoreReturn::Report(SessionId session, const v1::ResumeReport& part) {
  const auto who = reported_.find(session);
  if (!under_way_ || who == reported_.end()) return;
  who->second = !part.more();
  for (const v1::StoredKey& key : part.stored()) {
    if (key.has_version()) {
      const bool is_sum = key.value().empty() && key.sum() != 0;
      Take(key.key(), {FromProto(key.version()), is_sum ? absl::StrCat(key.total()) : key.value()});
    } else if (HasRoomFor(0)) {
      without_version_[session].push_back(key);
      Change(+1, static_cast<int64_t>(key.key().size() + key.value().size()));
    }
  }
  for (const v1::DeletedKey& key : part.deleted()) {
    const StoreVersion version = FromProto(key.version());
    if (!key.all()) {
      Take(key.key(), {version});
    } else if (HasRoomFor(0)) {
      const auto [known, is_new] = deleted_prefixes_.try_emplace(key.key(), version);
      known->second = std::max(known->second, version);
      if (is_new) Change(+1, static_cast<int64_t>(key.key().size()));
    }
  }
}

void StoreReturn::Take(const std::string& key, Last last) {
  const auto known = last_.find(key);
  if (known != last_.end()) {
    if (known->second.version >= last.version) return;
    Change(-1, -BytesOf(key, known->second));
    last_.erase(known);
  }
  // An older value must not stand for the one that there is no room for.
  if (!HasRoomFor(BytesOf(key, last))) last.value.reset();
  full_ = full_ || bytes_ > 2 * max_bytes_ || !share_.HasRoomFor(kKeyBytes + BytesOf(key, last));
  if (full_) return;
  Change(+1, BytesOf(key, last));
  last_.emplace(key, std::move(last));
}

int64_t StoreReturn::BytesOf(const std::string& key, const Last& last) {
  return static_cast<int64_t>(key.size() + (last.value.has_value() ? last.value->size() : 0));
}

bool StoreReturn::HasRoomFor(int64_t more) const {
  return bytes_ + more <= max_bytes_ && share_.HasRoomFor(more + kKeyBytes);
}

void StoreReturn::Change(int64_t keys, int64_t bytes) {
  keys_ += keys;
  bytes_ += bytes;
  share_.Set(bytes_ + keys_ * kKeyBytes);
}

void StoreReturn::Abandon() {
  under_way_ = full_ = false;
  reported_.clear();
  last_.clear();
  deleted_prefixes_.clear();
  without_version_.clear();
  Change(-keys_, -bytes_);
}

bool StoreReturn::Complete(absl::FunctionRef<bool(SessionId)> is_there) const {
  return std::all_of(reported_.begin(), reported_.end(),
                     [&](const auto& who) { return who.second || !is_there(who.first); });
}

std::map<std::string, std::string> StoreReturn::End(absl::FunctionRef<bool(SessionId)> is_there) {
  for (const auto& [prefix, deleted] : deleted_prefixes_) {
    for (auto it = last_.lower_bound(prefix);
         it != last_.end() && absl::StartsWith(it->first, prefix); ++it)
      if (it->second.version < deleted) it->second.value.reset();
  }
  std::map<std::string, std::string> values;
  std::map<std::string, int64_t> sums;
  for (const auto& [session, keys] : without_version_) {
    if (!is_there(session)) continue;
    for (const v1::StoredKey& key : keys) {
      const bool is_deleted =
          std::any_of(deleted_prefixes_.begin(), deleted_prefixes_.end(),
                      [&](const auto& one) { return absl::StartsWith(key.key(), one.first); });
      if (is_deleted || last_.contains(key.key())) continue;
      if (!key.value().empty() || key.sum() == 0) {
        values.try_emplace(key.key(), key.value());
      } else {
        // Two's complement, as a counter that overflows.
        int64_t& sum = sums[key.key()];
        sum = static_cast<int64_t>(static_cast<uint64_t>(sum) + static_cast<uint64_t>(key.sum()));
      }
    }
  }
  for (const auto& [key, sum] : sums) values.try_emplace(key, absl::StrCat(sum));
  for (auto& [key, last] : last_)
    if (last.value.has_value()) values[key] = *std::move(last.value);
  Abandon();
  return values;
}

}  // namespace coordd
