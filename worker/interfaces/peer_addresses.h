// How transports find each other: each rank sets one key, the others wait for it. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/protocol/store.h"
#include "common/protocol/types.h"

namespace coordd {

// The key of `rank`'s address: "PREFIX/RANK".
std::string AddressKey(absl::string_view prefix, Rank rank);

// The values of the keys of `ranks`, in their order; waits for them. DEADLINE_EXCEEDED: names the
// ranks (the first few) that did not show up.
absl::StatusOr<std::vector<std::string>> AwaitAddresses(Store& store, absl::string_view prefix,
                                                        absl::Span<const Rank> ranks,
                                                        absl::Time deadline);

// The error DEADLINE_EXCEEDED that names the ranks (the first few).
absl::Status RanksMissing(absl::string_view transport, absl::Span<const Rank> ranks);

}  // namespace coordd
