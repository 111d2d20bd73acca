#include "worker/peer_status.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

// Names the payload inside absl::Status; never leaves this process.
constexpr absl::string_view kSuspectRankPayload = "coordd/suspect-rank";

}  // namespace

absl::Status PeerLost(Rank rank, absl::string_view detail) {
  absl::Status status = absl::UnavailableError(absl::StrCat("rank ", ToInt(rank), ": ", detail));
  status.SetPayload(kSuspectRankPayload, absl::Cord(absl::StrCat(ToInt(rank))));
  return status;
}

std::optional<Rank> SuspectRank(const absl::Status& status) {
  const auto payload = status.GetPayload(kSuspectRankPayload);
  int32_t rank = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) return std::nullopt;
  return Rank{rank};
}

}  // namespace coordd
