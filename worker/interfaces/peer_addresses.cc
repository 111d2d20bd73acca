#include "worker/interfaces/peer_addresses.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coordd {
namespace {

// Enough for a person to look at; a partition would name thousands.
constexpr size_t kMaxRanksNamed = 8;

}  // namespace

std::string AddressKey(absl::string_view prefix, Rank rank) {
  return absl::StrCat(prefix, "/", ToInt(rank));
}

absl::StatusOr<std::vector<std::string>> AwaitAddresses(Store& store, absl::string_view prefix,
                                                        absl::Span<const Rank> ranks,
                                                        absl::Time deadline) {
  std::vector<std::string> addresses;
  std::vector<Rank> missing;
  for (Rank rank : ranks) {
    absl::StatusOr<std::string> address = store.Get(AddressKey(prefix, rank), deadline);
    if (address.ok()) {
      addresses.push_back(*std::move(address));
    } else if (absl::IsDeadlineExceeded(address.status())) {
      // The deadline has passed: the remaining calls only look.
      missing.push_back(rank);
    } else {
      return address.status();
    }
  }
  if (!missing.empty()) return RanksMissing(prefix, missing);
  return addresses;
}

absl::Status RanksMissing(absl::string_view transport, absl::Span<const Rank> ranks) {
  const absl::Span<const Rank> named = ranks.subspan(0, kMaxRanksNamed);
  const std::string rest = ranks.size() > named.size()
                               ? absl::StrCat(" and ", ranks.size() - named.size(), " more")
                               : "";
  auto append = [](std::string* out, Rank rank) { absl::StrAppend(out, ToInt(rank)); };
  return absl::DeadlineExceededError(
      absl::StrCat("connecting the ", transport, " transport: rank", ranks.size() == 1 ? " " : "s ",
                   absl::StrJoin(named, ", ", append), rest, " did not show up in time"));
}

}  // namespace coordd
