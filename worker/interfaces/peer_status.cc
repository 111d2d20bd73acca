#include "worker/interfaces/peer_status.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

// Name the payloads inside absl::Status; never leave this process.
constexpr absl::string_view kSuspectRankPayload = "coordd/suspect-rank";
constexpr absl::string_view kSilentPayload = "coordd/suspect-silent";

}  // namespace

absl::Status PeerLost(Rank rank, absl::string_view detail) {
  absl::Status status = absl::UnavailableError(absl::StrCat("rank ", ToInt(rank), ": ", detail));
  status.SetPayload(kSuspectRankPayload, absl::Cord(absl::StrCat(ToInt(rank))));
  return status;
}

absl::Status PeerSilent(Rank rank, absl::string_view detail) {
  absl::Status status = PeerLost(rank, detail);
  status.SetPayload(kSilentPayload, absl::Cord());
  return status;
}

std::optional<Suspect> SuspectOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kSuspectRankPayload);
  int32_t rank = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &rank)) return std::nullopt;
  return Suspect{Rank{rank}, status.GetPayload(kSilentPayload).has_value()};
}

std::optional<Rank> SuspectRank(const absl::Status& status) {
  const std::optional<Suspect> suspect = SuspectOf(status);
  if (!suspect.has_value()) return std::nullopt;
  return suspect->rank;
}

}  // namespace coordd
