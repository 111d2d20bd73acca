// What ranks ask coordd for: a new process set, or the end of one; and what becomes of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/protocol/types.h"
#include "server/generation/tombstones.h"

namespace coordd {

struct ProcessSetProposal {
  ProcessSetId remove;      // 0: add one
  std::vector<Rank> ranks;  // of the new set
  std::string name = {};    // its members alone ask for it; empty: all ranks do

  bool adds() const { return remove == ProcessSetId{0}; }
  friend bool operator==(const ProcessSetProposal&, const ProcessSetProposal&) = default;
};
std::string ToString(const ProcessSetProposal& proposal);  // "add [0, 2]", "remove 3"
// "process set request 4 to add [0, 2]"; with a name "process set tp of ranks [0, 2]", "the end of
// process set tp".
std::string TitleOf(int64_t number, const ProcessSetProposal& proposal);

// Ranks that must hear that their request failed, now.
struct FailedRequest {
  int64_t number = 0;  // 0: it has a name
  TensorFault fault;
  std::vector<Rank> ranks;
  std::string name = {};
};

struct AgreedRequest {
  int64_t number = 0;
  ProcessSetProposal proposal;
  std::vector<Rank> members = {};  // of a set with a name
  std::vector<Rank> told = {};     // had its answer before coordd was started again
};

struct PendingRequest {
  std::string title;  // TitleOf the first rank's proposal
  absl::Time since;
  std::vector<Rank> ready, missing;  // the first ones
  int32_t ready_count = 0, missing_count = 0;
};

}  // namespace coordd
