#include "server/generation/tombstones.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

constexpr int64_t kTombstoneCostBytes = 256;  // containers, status

int64_t Cost(absl::string_view name, const TensorFault& fault, int64_t owed_bytes) {
  return kTombstoneCostBytes + static_cast<int64_t>(name.size() + fault.status.message().size()) +
         owed_bytes;
}

int64_t Total(const std::vector<GroupDebt>& owed) {
  int64_t total = 0;
  for (const GroupDebt& debt : owed) total += debt.count;
  return total;
}

}  // namespace

void Tombstones::AddTensor(absl::string_view name, const TensorFault& fault, RankSet owed) {
  if (owed.empty()) return;
  std::deque<Tensor>& faults = tensors_[name];
  if (faults.size() == kMaxPerName) {
    state_bytes_ -= faults.front().cost_bytes;
    --tensors_count_;
    faults.pop_front();
  }
  const int64_t cost = Cost(name, fault, owed.size_bytes());
  faults.push_back(Tensor{fault, std::move(owed), cost});
  state_bytes_ += cost;
  ++tensors_count_;
}

void Tombstones::AddGroup(absl::string_view group, const TensorFault& fault,
                          std::vector<GroupDebt> owed) {
  const int64_t total = Total(owed);
  if (total == 0) return;
  std::deque<Group>& faults = groups_[group];
  if (faults.size() == kMaxPerName) {
    state_bytes_ -= faults.front().cost_bytes;
    --groups_count_;
    faults.pop_front();
  }
  const int64_t cost = Cost(group, fault, static_cast<int64_t>(owed.size() * sizeof(GroupDebt)));
  faults.push_back(Group{fault, std::move(owed), total, cost});
  state_bytes_ += cost;
  ++groups_count_;
}

std::optional<TensorFault> Tombstones::Take(Rank rank, absl::string_view name,
                                            absl::string_view group, int32_t group_size) {
  if (size() == 0) return std::nullopt;  // nearly always
  std::optional<TensorFault> fault = TakeTensor(rank, name);
  if (!fault.has_value() && !group.empty()) fault = TakeGroup(rank, group, group_size);
  return fault;
}

std::optional<TensorFault> Tombstones::TakeTensor(Rank rank, absl::string_view name) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) return std::nullopt;
  std::deque<Tensor>& faults = it->second;
  for (auto tomb = faults.begin(); tomb != faults.end(); ++tomb) {
    if (!tomb->owed.Erase(rank)) continue;
    const TensorFault fault = tomb->fault;
    if (tomb->owed.empty()) {
      state_bytes_ -= tomb->cost_bytes;
      --tensors_count_;
      faults.erase(tomb);
      if (faults.empty()) tensors_.erase(it);
    }
    return fault;
  }
  return std::nullopt;
}

std::optional<TensorFault> Tombstones::TakeGroup(Rank rank, absl::string_view group, int32_t size) {
  const auto it = groups_.find(group);
  if (it == groups_.end()) return std::nullopt;
  std::deque<Group>& faults = it->second;
  for (auto tomb = faults.begin(); tomb != faults.end(); ++tomb) {
    GroupDebt& debt = tomb->owed[static_cast<size_t>(members_->IndexOf(rank))];
    if (debt.count == 0) continue;
    tomb->total -= debt.count;
    if (debt.size != size) {  // the rank's group is another than those of the ranks before it
      debt = {std::max(1, debt.count + size - debt.size), size};
    }
    tomb->total += --debt.count;
    const TensorFault fault = tomb->fault;
    if (tomb->total == 0) {
      state_bytes_ -= tomb->cost_bytes;
      --groups_count_;
      faults.erase(tomb);
      if (faults.empty()) groups_.erase(it);
    }
    return fault;
  }
  return std::nullopt;
}

int64_t Tombstones::Free(int64_t most) {
  int64_t freed = 0;
  const auto free = [&](auto& by_name, int64_t& count) {
    for (auto it = by_name.begin(); it != by_name.end() && freed < most;) {
      for (const auto& tomb : it->second) state_bytes_ -= tomb.cost_bytes;
      const auto faults = static_cast<int64_t>(it->second.size());
      count -= faults;
      freed += faults;
      by_name.erase(it++);
    }
  };
  free(tensors_, tensors_count_);
  free(groups_, groups_count_);
  return freed;
}

void Tombstones::Forgive(Rank rank) {
  for (auto it = tensors_.begin(); it != tensors_.end();) {
    std::deque<Tensor>& faults = it->second;
    for (Tensor& tomb : faults) {
      if (!tomb.owed.Erase(rank) || !tomb.owed.empty()) continue;
      state_bytes_ -= tomb.cost_bytes;
      --tensors_count_;
    }
    std::erase_if(faults, [](const Tensor& tomb) { return tomb.owed.empty(); });
    const auto next = std::next(it);
    if (faults.empty()) tensors_.erase(it);
    it = next;
  }
  const size_t index = static_cast<size_t>(members_->IndexOf(rank));
  for (auto it = groups_.begin(); it != groups_.end();) {
    std::deque<Group>& faults = it->second;
    for (Group& tomb : faults) {
      tomb.total -= std::exchange(tomb.owed[index].count, 0);
      if (tomb.total != 0) continue;
      state_bytes_ -= tomb.cost_bytes;
      --groups_count_;
    }
    std::erase_if(faults, [](const Group& tomb) { return tomb.total == 0; });
    const auto next = std::next(it);
    if (faults.empty()) groups_.erase(it);
    it = next;
  }
}

absl::Status Tombstones::CheckConsistency() const {
  int64_t count = 0;
  int64_t bytes = 0;
  for (const auto& [name, faults] : tensors_) {
    for (const Tensor& tomb : faults) {
      if (tomb.owed.empty() || !tomb.owed.CountsAreRight()) {
        return absl::InternalError(absl::StrCat("tombstone of ", name, " miscounts its ranks"));
      }
      ++count;
      bytes += tomb.cost_bytes;
    }
  }
  for (const auto& [name, faults] : groups_) {
    for (const Group& tomb : faults) {
      const int64_t total = Total(tomb.owed);
      if (total != tomb.total || total == 0) {
        return absl::InternalError(absl::StrCat("tombstone of group ", name, " miscounts"));
      }
      ++count;
      bytes += tomb.cost_bytes;
    }
  }
  if (count != size() || bytes != state_bytes_) {
    return absl::InternalError("tombstones miscount themselves");
  }
  return absl::OkStatus();
}

}  // namespace coordd
