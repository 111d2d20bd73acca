// Statuses of the data plane that know which rank is to blame.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/types.h"

namespace coordd {

// UNAVAILABLE "rank 3: detail", with the rank as a payload.
absl::Status PeerLost(Rank rank, absl::string_view detail);
// The rank that a status of the data plane blames, if it blames one.
std::optional<Rank> SuspectRank(const absl::Status& status);

}  // namespace coordd
