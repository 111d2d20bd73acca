#include "server/generation/device_waits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/protocol/proto_convert.h"
#include "server/members/rank_set.h"

namespace coordd {
namespace {

constexpr absl::string_view kStarted = "started on";
constexpr absl::string_view kEnded = "ended on";

std::string TitleOf(const v1::DeviceBatch& told) {
  const bool known = told.kind() <= static_cast<int>(kLastCollectiveKind);
  std::string title = absl::StrCat(
      known ? Name(static_cast<CollectiveKind>(told.kind())) : "collective", " ", told.tensor());
  if (told.tensors() > 1) absl::StrAppend(&title, " (+", told.tensors() - 1, ")");
  return title;
}

absl::string_view PhraseOf(v1::DeviceStage stage) {
  switch (stage) {
    case v1::DEVICE_STAGE_LAUNCHING:
      return "being launched on";
    case v1::DEVICE_STAGE_ENQUEUED:
      return "enqueued on";
    case v1::DEVICE_STAGE_HELD:
      return "enqueued behind the program's own work on";
    case v1::DEVICE_STAGE_STARTED:
      return kStarted;
    default:
      return "on the device of";
  }
}

}  // namespace

void DeviceWaits::Note(Rank rank, const v1::Heartbeat& heartbeat, absl::string_view place,
                       absl::Time now) {
  const auto& told = heartbeat.device_batches();
  if (batches_.empty() && told.empty()) return;
  std::vector<Key> keys;
  for (const v1::DeviceBatch& batch : told) keys.emplace_back(batch.lane(), batch.sequence());
  for (int i = 0; i < told.size(); ++i) Enter(rank, told[i], /*is_first=*/i == 0, now);
  const auto before = by_rank_.find(rank);
  if (before != by_rank_.end()) {
    for (const Key& key : before->second)
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) Leave(rank, key);
  }
  std::erase_if(keys, [this](const Key& key) { return !batches_.contains(key); });
  if (keys.empty()) {
    by_rank_.erase(rank);
  } else {
    by_rank_[rank] = std::move(keys);
  }
  if (batches_.empty()) return ForgetAll();
  std::string& known = places_[rank];
  if (known != place) {
    known = std::string(place);
    for (auto& [key, batch] : batches_) batch.text.reset();
  }
  NotePositions(rank, heartbeat);
}

void DeviceWaits::Enter(Rank rank, const v1::DeviceBatch& told, bool is_first, absl::Time now) {
  const Key key(told.lane(), told.sequence());
  auto found = batches_.find(key);
  if (found == batches_.end()) {
    if (batches_.size() >= kMaxBatches) return;
    found = batches_.try_emplace(key).first;
    found->second.title = TitleOf(told);
    found->second.process_set = ProcessSetId{told.process_set()};
    found->second.since = std::min(now, now - FromProto(told.on_device()));
    ++lanes_[key.first].batches;
  }
  Batch& batch = found->second;
  const auto [stage, is_new] = batch.stages.try_emplace(rank, told.stage());
  if (is_new || stage->second != told.stage()) batch.text.reset();
  stage->second = told.stage();
  if (is_first) {
    batch.first_of.insert(rank);
  } else {
    batch.first_of.erase(rank);
  }
  List(key, batch);
}

void DeviceWaits::Leave(Rank rank, const Key& key) {
  const auto found = batches_.find(key);
  if (found == batches_.end()) return;
  Batch& batch = found->second;
  batch.stages.erase(rank);
  batch.first_of.erase(rank);
  batch.text.reset();
  List(key, batch);
  if (batch.stages.empty()) Drop(key);
}

void DeviceWaits::List(const Key& key, Batch& batch) {
  const bool listed = !batch.first_of.empty();
  if (listed == batch.listed) return;
  batch.listed = listed;
  if (listed) {
    ages_.Enter(batch.since, key);
  } else {
    ages_.Leave(batch.since, key);
  }
}

// REQUIRES: it is not listed.
void DeviceWaits::Drop(const Key& key) {
  batches_.erase(key);
  const auto lane = lanes_.find(key.first);
  if (--lane->second.batches > 0) return;
  positions_ -= lane->second.positions.size();
  lanes_.erase(lane);
}

void DeviceWaits::NotePositions(Rank rank, const v1::Heartbeat& heartbeat) {
  for (const v1::LanePosition& told : heartbeat.lanes()) {
    const auto lane = lanes_.find(told.lane());
    if (lane == lanes_.end()) continue;
    auto found = lane->second.positions.find(rank);
    if (found == lane->second.positions.end()) {
      if (positions_ >= kMaxPositions) continue;
      ++positions_;
      found = lane->second.positions.try_emplace(rank).first;
    }
    Position& position = found->second;
    if (position.launched == told.launched() && position.completed == told.completed()) continue;
    position = {told.launched(), told.completed()};
    for (auto it = batches_.lower_bound({told.lane(), 0});
         it != batches_.end() && it->first.first == told.lane(); ++it) {
      it->second.text.reset();
    }
  }
}

absl::string_view DeviceWaits::PhraseOf(const Key& key, const Batch& batch, Rank rank,
                                        bool* has_begun) const {
  const auto stage = batch.stages.find(rank);
  if (stage != batch.stages.end()) {
    *has_begun = stage->second == v1::DEVICE_STAGE_STARTED;
    return coordd::PhraseOf(stage->second);
  }
  const Lane& lane = lanes_.at(key.first);
  const auto position = lane.positions.find(rank);
  *has_begun = position != lane.positions.end() && position->second.completed >= key.second;
  if (*has_begun) return kEnded;
  // Among many it has not been a second there, or is not one of the few that are told.
  const bool launched = position != lane.positions.end() && position->second.launched >= key.second;
  return launched ? "on its way to the device of" : "not launched on";
}

// " (GPU-8f3c…, host b; GPU-91aa…, host c)", of the first ones.
std::string DeviceWaits::PlacesOf(const std::vector<Rank>& ranks) const {
  constexpr size_t kPlaces = 2;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kPlaces); ++i) {
    const auto place = places_.find(ranks[i]);
    if (place == places_.end() || place->second.empty()) continue;
    absl::StrAppend(&text, text.empty() ? " (" : "; ", place->second);
  }
  return text.empty() ? text : text + ")";
}

const PendingTensor& DeviceWaits::Describe(const Key& key) const {
  const Batch& batch = batches_.at(key);
  if (batch.text.has_value()) return *batch.text;
  PendingTensor& text = batch.text.emplace();
  text.process_set = batch.process_set;
  text.name = batch.title;
  text.since = batch.since;
  std::vector<Rank> ranks;
  if (const MemberList* const members = sets_.Find(batch.process_set)) {
    for (int32_t i = 0; i < members->size(); ++i) ranks.push_back(members->At(i));
  } else {
    for (const auto& [rank, stage] : batch.stages) ranks.push_back(rank);
  }
  std::vector<std::pair<absl::string_view, std::vector<Rank>>> groups = {{kStarted, {}},
                                                                         {kEnded, {}}};
  for (const Rank rank : ranks) {
    bool has_begun = false;
    const absl::string_view phrase = PhraseOf(key, batch, rank, &has_begun);
    std::vector<Rank>& named = has_begun ? text.ready : text.missing;
    ++(has_begun ? text.ready_count : text.missing_count);
    if (named.size() < kNamedRanks) named.push_back(rank);
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& one) { return one.first == phrase; });
    if (group == groups.end()) group = groups.insert(group, {phrase, {}});
    group->second.push_back(rank);
  }
  for (const auto& [phrase, of] : groups) {
    if (of.empty()) continue;
    absl::StrAppend(&text.on_devices, text.on_devices.empty() ? "" : ", ", phrase, " ",
                    RanksString(of, static_cast<int64_t>(of.size())));
    // Where all goes on as it should nobody has to look.
    if (phrase != kStarted && phrase != kEnded) absl::StrAppend(&text.on_devices, PlacesOf(of));
  }
  return text;
}

std::vector<PendingTensor> DeviceWaits::DescribeAll(const std::vector<Key>& keys) const {
  std::vector<PendingTensor> texts;
  for (const Key& key : keys) texts.push_back(Describe(key));
  return texts;
}

std::vector<PendingTensor> DeviceWaits::NewlyStalled(absl::Time now, absl::Duration age) {
  return DescribeAll(ages_.TellOlder(now - age));
}

std::vector<PendingTensor> DeviceWaits::Stalled(absl::Time now, absl::Duration age,
                                                size_t limit) const {
  return DescribeAll(ages_.Older(now - age, limit));
}

std::string DeviceWaits::StandOf(Rank rank) const {
  const auto found = by_rank_.find(rank);
  if (found == by_rank_.end()) return "";
  const Batch& batch = batches_.at(found->second.front());
  const auto stage = batch.stages.find(rank);
  if (stage == batch.stages.end()) return "";
  switch (stage->second) {
    case v1::DEVICE_STAGE_LAUNCHING:
      return absl::StrCat("launches ", batch.title, " on its device");
    case v1::DEVICE_STAGE_HELD:
      return absl::StrCat("its device does the program's own work before ", batch.title);
    default:
      return absl::StrCat("its device is at ", batch.title);
  }
}

void DeviceWaits::ForgetAll() {
  batches_.clear();
  by_rank_.clear();
  lanes_.clear();
  positions_ = 0;
  places_.clear();
  ages_.Clear();
}

void DeviceWaits::Forgive(absl::Duration gap) {
  ages_.Forgive(gap);
  for (auto& [key, batch] : batches_) {
    batch.since += gap;
    batch.text.reset();
  }
}

}  // namespace coordd
