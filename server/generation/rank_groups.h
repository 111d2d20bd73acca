// Ranks of a generation that report together, in one message of a node session.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "server/generation/readiness_table.h"
#include "server/members/member_list.h"
#include "server/model/effects.h"

namespace coordd {

struct RankGroup {
  ReadinessTable::Reporters reporters;      // in the set of all ranks
  absl::Time heard = absl::InfinitePast();  // for the owner of their leases
};

// PURE. Not thread-safe. Remembers who the ranks of a range of sessions are, and no more ranges
// than the generation has ranks.
class RankGroups {
 public:
  // Both outlive it.
  RankGroups(const std::vector<SessionId>& by_rank, const MemberList& all)
      : by_rank_(by_rank), all_(all) {}

  // nullptr: not all of them are members. Valid until the next call.
  RankGroup* Find(SessionRange sessions);

 private:
  const std::vector<SessionId>& by_rank_;
  const MemberList& all_;
  std::map<std::pair<SessionId, int32_t>, RankGroup> groups_;  // by first session and number
};

}  // namespace coordd
