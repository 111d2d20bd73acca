#include "server/members/member_list.h"

#include <algorithm>

#include "common/base/check.h"

namespace coordd {

MemberList MemberList::All(int32_t world_size) {
  COORDD_CHECK(world_size > 0);
  MemberList all;
  all.size_ = world_size;
  return all;
}

MemberList::MemberList(std::vector<Rank> ranks)
    : size_(static_cast<int32_t>(ranks.size())), ranks_(std::move(ranks)) {
  COORDD_CHECK(size_ > 0);
}

int32_t MemberList::Search(Rank rank) const {
  const auto it = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
  return it != ranks_.end() && *it == rank ? static_cast<int32_t>(it - ranks_.begin()) : -1;
}

std::vector<Rank> MemberList::Ranks() const {
  if (!ranks_.empty()) return ranks_;
  std::vector<Rank> ranks;
  ranks.reserve(static_cast<size_t>(size_));
  for (int32_t i = 0; i < size_; ++i) ranks.push_back(Rank{i});
  return ranks;
}

}  // namespace coordd
