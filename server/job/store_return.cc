#include "server/job/store_return.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"
#include "common/protocol/store.h"

namespace coordd {

// What nobody wants any more.
class StoreReturn::Dropped final : public Remains {
 public:
  Dropped(Brought brought, BudgetShare share)
      : brought_(std::move(brought)), share_(std::move(share)) {}

  int64_t Free(int64_t most) override {
    int64_t left = most - FreeFirst(brought_.last, most);
    left -= FreeFirst(brought_.merged, left);
    left -= brought_.deleted_prefixes.Free(left);
    auto& reported = brought_.without_version;
    while (left > 0 && !reported.empty()) {
      auto& keys = reported.begin()->second.keys;
      for (; left > 0 && !keys.empty(); --left) keys.pop_front();
      if (keys.empty()) reported.erase(reported.begin());
    }
    if (brought_.empty()) share_.Set(0);
    return most - left;
  }

 private:
  Brought brought_;
  BudgetShare share_;
};

bool StoreReturn::Brought::empty() const {
  return last.empty() && deleted_prefixes.empty() && without_version.empty() && merged.empty();
}

void StoreReturn::Came(SessionId session) {
  if (under_way_) reporting_.insert(session);
}

void StoreReturn::Report(SessionId session, const v1::ResumeReport& part) {
  const auto who = reporting_.find(session);
  if (!under_way_ || who == reporting_.end()) return;
  if (!part.more()) reporting_.erase(who);
  for (const v1::StoredKey& key : part.stored()) {
    if (key.has_version()) {
      const bool is_sum = key.value().empty() && key.sum() != 0;
      TakeLast(key.key(),
               {FromProto(key.version()), is_sum ? absl::StrCat(key.total()) : key.value()});
    } else if (HasRoomFor(0)) {
      brought_.without_version[session].keys.push_back(key);
      Change(+1, static_cast<int64_t>(key.key().size() + key.value().size()));
    }
  }
  for (const v1::DeletedKey& key : part.deleted()) {
    const StoreVersion version = FromProto(key.version());
    if (!key.all()) {
      TakeLast(key.key(), {version});
    } else if (static_cast<int64_t>(key.key().size()) <= Store::kMaxKeyBytes && HasRoomFor(0) &&
               brought_.deleted_prefixes.Add(key.key(), version)) {
      Change(+1, static_cast<int64_t>(key.key().size()));
    }
  }
}

void StoreReturn::TakeLast(const std::string& key, Last last) {
  const auto known = brought_.last.find(key);
  if (known != brought_.last.end()) {
    if (known->second.version >= last.version) return;
    Change(-1, -BytesOf(key, known->second));
    brought_.last.erase(known);
  }
  // An older value must not stand for the one that there is no room for.
  if (!HasRoomFor(BytesOf(key, last))) last.value.reset();
  full_ = full_ || bytes_ > 2 * max_bytes_ || !share_.HasRoomFor(kKeyBytes + BytesOf(key, last));
  if (full_) return;
  Change(+1, BytesOf(key, last));
  brought_.last.emplace(key, std::move(last));
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

std::unique_ptr<Remains> StoreReturn::Abandon() {
  under_way_ = ending_ = full_ = walks_ = false;
  reporting_.clear();
  Brought brought = std::exchange(brought_, {});
  BudgetShare share = share_.Split(share_.bytes());
  keys_ = bytes_ = 0;
  if (brought.empty()) return nullptr;
  return std::make_unique<Dropped>(std::move(brought), std::move(share));
}

// Each turn asks: who has reported is not looked at, and who has gone once.
bool StoreReturn::Complete(absl::FunctionRef<bool(SessionId)> is_there) {
  while (!reporting_.empty() && !is_there(*reporting_.begin()))
    reporting_.erase(reporting_.begin());
  return reporting_.empty();
}

void StoreReturn::End(absl::FunctionRef<bool(SessionId)> is_there) {
  under_way_ = false;
  ending_ = true;
  for (auto& [session, said] : brought_.without_version) said.counts = is_there(session);
}

std::map<std::string, std::string> StoreReturn::Take(int64_t pieces) {
  Values values;
  if (!ending_) return values;
  int64_t left = pieces;
  TakeReported(left);
  TakeVersioned(left, values);
  TakeMerged(left, values);
  if (brought_.last.empty() && brought_.merged.empty() && left > 0)
    left -= brought_.deleted_prefixes.Free(left);
  if (brought_.empty()) Abandon();
  return values;
}

void StoreReturn::TakeReported(int64_t& left) {
  auto& reported = brought_.without_version;
  while (left > 0 && !reported.empty()) {
    WithoutVersion& said = reported.begin()->second;
    for (; left > 0 && !said.keys.empty(); --left) {
      const v1::StoredKey key = std::move(said.keys.front());
      said.keys.pop_front();
      Change(-1, -static_cast<int64_t>(key.key().size() + key.value().size()));
      if (said.counts) Merge(key);
    }
    if (said.keys.empty()) reported.erase(reported.begin());
  }
}

void StoreReturn::Merge(const v1::StoredKey& key) {
  const auto [known, is_new] = brought_.merged.try_emplace(key.key());
  if (is_new) Change(+1, static_cast<int64_t>(key.key().size()));
  Merged& merged = known->second;
  const bool is_sum = key.value().empty() && key.sum() != 0;
  if (is_sum) {
    merged.sum += static_cast<uint64_t>(key.sum());
  } else if (!merged.value.has_value()) {
    merged.value = key.value();
    Change(0, static_cast<int64_t>(key.value().size()));
  }
}

void StoreReturn::TakeVersioned(int64_t& left, Values& values) {
  auto& last = brought_.last;
  while (left > 0 && brought_.without_version.empty() && !last.empty()) {
    if (!std::exchange(walks_, true)) brought_.deleted_prefixes.Begin();
    const auto it = last.begin();
    if (!brought_.deleted_prefixes.Reach(it->first, left)) return;
    --left;
    const std::optional<StoreVersion> deleted = brought_.deleted_prefixes.last();
    const bool is_deleted = deleted.has_value() && it->second.version < *deleted;
    Change(-1, -BytesOf(it->first, it->second));
    const auto without = brought_.merged.find(it->first);
    if (without != brought_.merged.end()) {
      const auto& value = without->second.value;
      Change(-1, -static_cast<int64_t>(it->first.size() + (value ? value->size() : 0)));
      brought_.merged.erase(without);
    }
    auto node = last.extract(it);
    if (!is_deleted && node.mapped().value.has_value())
      values.emplace_hint(values.end(), std::move(node.key()), *std::move(node.mapped().value));
    if (last.empty()) walks_ = false;
  }
}

void StoreReturn::TakeMerged(int64_t& left, Values& values) {
  auto& merged = brought_.merged;
  while (left > 0 && brought_.without_version.empty() && brought_.last.empty() && !merged.empty()) {
    if (!std::exchange(walks_, true)) brought_.deleted_prefixes.Begin();
    const auto it = merged.begin();
    if (!brought_.deleted_prefixes.Reach(it->first, left)) return;
    --left;
    auto node = merged.extract(it);
    std::optional<std::string>& value = node.mapped().value;
    Change(-1, -static_cast<int64_t>(node.key().size() + (value ? value->size() : 0)));
    if (brought_.deleted_prefixes.last().has_value()) continue;
    if (!value) value = absl::StrCat(static_cast<int64_t>(node.mapped().sum));
    values.emplace(std::move(node.key()), *std::move(value));
  }
}

}  // namespace coordd
