// What is left of failed tensors: ranks that have not named them yet hear of the failure when they
// do, once each.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/protocol/types.h"
#include "server/members/member_list.h"
#include "server/members/rank_set.h"

namespace coordd {

inline constexpr Rank kNobody{-1};

struct TensorFault {
  absl::Status status;
  Rank blamed = kNobody;
};

// How many more tensors of a group that failed a rank will name.
struct GroupDebt {
  int32_t count = 0;
  int32_t size = 0;  // of the group, as far as is known: the rank itself may say another one
};

// Not thread-safe.
class Tombstones {
 public:
  // Failures of one name that are kept apart. A rank that retries a name again and again while
  // another is silent reaches this; the oldest is then forgotten.
  static constexpr size_t kMaxPerName = 64;

  explicit Tombstones(const MemberList& members) : members_(&members) {}  // which outlives it

  // Each rank of `owed` hears of the fault the next time it names the tensor.
  void AddTensor(absl::string_view name, const TensorFault& fault, RankSet owed);
  // `owed`: by member.
  void AddGroup(absl::string_view group, const TensorFault& fault, std::vector<GroupDebt> owed);

  // The oldest fault that `rank`, naming this tensor (of this group; empty: alone), has not heard.
  // `group_size`: of the group, as the rank says.
  std::optional<TensorFault> Take(Rank rank, absl::string_view name, absl::string_view group,
                                  int32_t group_size);

  // `rank` will not name what it has not named yet: it has joined.
  void Forgive(Rank rank);

  int64_t Free(int64_t most);  // so many of them, about; how many

  int64_t size() const { return tensors_count_ + groups_count_; }
  int64_t state_bytes() const { return state_bytes_; }  // about
  absl::Status CheckConsistency() const;

 private:
  struct Tensor {
    TensorFault fault;
    RankSet owed;
    int64_t cost_bytes;
  };
  struct Group {
    TensorFault fault;
    std::vector<GroupDebt> owed;
    int64_t total;  // of the counts
    int64_t cost_bytes;
  };
  std::optional<TensorFault> TakeTensor(Rank rank, absl::string_view name);
  std::optional<TensorFault> TakeGroup(Rank rank, absl::string_view group, int32_t size);

  const MemberList* members_;
  absl::flat_hash_map<std::string, std::deque<Tensor>> tensors_;
  absl::flat_hash_map<std::string, std::deque<Group>> groups_;
  int64_t tensors_count_ = 0;
  int64_t groups_count_ = 0;
  int64_t state_bytes_ = 0;
};

}  // namespace coordd
