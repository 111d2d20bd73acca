#include "server/generation/comm_waits.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"

namespace coordd {

void CommWaits::Note(Rank rank, const google::protobuf::RepeatedPtrField<v1::CommWait>& waits,
                     absl::Time now) {
  const auto before = by_rank_.find(rank);
  if (waits.empty() && before == by_rank_.end()) return;
  std::vector<Key> keys;
  for (const v1::CommWait& wait : waits) keys.emplace_back(wait.comm(), wait.call());
  if (before != by_rank_.end()) {
    for (const Key& key : std::exchange(before->second, {}))
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) Leave(rank, key);
  }
  std::vector<Key>& mine = by_rank_[rank];
  for (int i = 0; i < waits.size(); ++i) {
    Key& key = keys[static_cast<size_t>(i)];
    if (std::find(mine.begin(), mine.end(), key) != mine.end()) continue;
    Enter(rank, waits[i], now);
    if (calls_.contains(key)) mine.push_back(std::move(key));
  }
  if (mine.empty()) by_rank_.erase(rank);
}

void CommWaits::Enter(Rank rank, const v1::CommWait& wait, absl::Time now) {
  const Key key(wait.comm(), wait.call());
  const absl::Duration waited = FromProto(wait.waiting());
  const absl::Time since = std::min(now, now - waited);
  auto found = calls_.find(key);
  // A message says the same of itself as the one before. Heartbeats may be late, but a wait that
  // goes on gets no shorter.
  const bool again = found != calls_.end() && found->second.in == std::set<Rank>{rank} &&
                     waited < found->second.waited;
  if (again) {
    Leave(rank, key);
    found = calls_.end();
  }
  if (found == calls_.end()) {
    if (calls_.size() >= kMaxCalls) return;
    found = calls_.try_emplace(key).first;
    found->second.since = since;
    ages_.Enter(since, key);
  }
  Call& call = found->second;
  call.waited = waited;
  if (call.in.insert(rank).second) call.text.reset();
  std::vector<Rank> missing;
  for (const int32_t one : wait.missing_ranks()) missing.push_back(Rank{one});
  if (!missing.empty() && missing != call.missing) {
    call.missing = std::move(missing);
    call.text.reset();
  }
  if (wait.has_process_set()) call.of = ProcessSetId{wait.process_set()};
}

void CommWaits::Leave(Rank rank, const Key& key) {
  const auto found = calls_.find(key);
  if (found == calls_.end()) return;
  Call& call = found->second;
  call.in.erase(rank);
  call.text.reset();
  if (!call.in.empty()) return;
  ages_.Leave(call.since, key);
  calls_.erase(found);
}

const PendingTensor& CommWaits::Describe(const Key& key) const {
  const Call& call = calls_.at(key);
  if (call.text.has_value()) return *call.text;
  PendingTensor& text = call.text.emplace();
  text.process_set = call.of.value_or(ProcessSetId{0});
  text.name = absl::StrCat("comm ", key.first, ": ", key.second);
  text.since = call.since;
  for (const Rank rank : call.in) {
    if (text.ready.size() == kNamedRanks) break;
    text.ready.push_back(rank);
  }
  text.ready_count = static_cast<int32_t>(call.in.size());
  const MemberList* const members = call.of.has_value() ? sets_.Find(*call.of) : nullptr;
  if (members == nullptr) {
    for (const Rank rank : call.missing)
      if (!call.in.contains(rank)) text.missing.push_back(rank);
    text.missing_count = static_cast<int32_t>(text.missing.size());
    return text;
  }
  for (int32_t i = 0; i < members->size(); ++i) {
    if (call.in.contains(members->At(i))) continue;
    ++text.missing_count;
    if (text.missing.size() < kNamedRanks) text.missing.push_back(members->At(i));
  }
  return text;
}

std::vector<PendingTensor> CommWaits::DescribeAll(const std::vector<Key>& keys) const {
  std::vector<PendingTensor> texts;
  for (const Key& key : keys) texts.push_back(Describe(key));
  return texts;
}

std::vector<PendingTensor> CommWaits::NewlyStalled(absl::Time now, absl::Duration age) {
  return DescribeAll(ages_.TellOlder(now - age));
}

std::vector<PendingTensor> CommWaits::Stalled(absl::Time now, absl::Duration age,
                                              size_t limit) const {
  return DescribeAll(ages_.Older(now - age, limit));
}

std::optional<PendingTensor> CommWaits::LongestOf(Rank rank) const {
  const auto found = by_rank_.find(rank);
  if (found == by_rank_.end()) return std::nullopt;
  const auto oldest = std::min_element(
      found->second.begin(), found->second.end(),
      [this](const Key& a, const Key& b) { return calls_.at(a).since < calls_.at(b).since; });
  return Describe(*oldest);
}

void CommWaits::ForgetAll() {
  calls_.clear();
  by_rank_.clear();
  ages_.Clear();
}

void CommWaits::Forgive(absl::Duration gap) {
  ages_.Forgive(gap);
  for (auto& [key, call] : calls_) {
    call.since += gap;
    call.text.reset();
  }
}

}  // namespace coordd
