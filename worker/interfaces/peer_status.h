// Statuses of the data plane that know which rank is to blame.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/protocol/types.h"

namespace coordd {

// A peer that the data plane blames.
struct Suspect {
  Rank rank;
  // Whether the peer does not answer, and nothing has told of its end; otherwise its connection has
  // ended.
  bool silent = false;
};

// UNAVAILABLE "rank 3: detail", with the rank as a payload.
absl::Status PeerLost(Rank rank, absl::string_view detail);
// The status of a peer that does not answer.
absl::Status PeerSilent(Rank rank, absl::string_view detail);
// The peer that a status of the data plane blames, if it blames anybody.
std::optional<Suspect> SuspectOf(const absl::Status& status);
std::optional<Rank> SuspectRank(const absl::Status& status);

}  // namespace coordd
