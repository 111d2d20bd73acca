#include "worker/peer_addresses.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coordd {
namespace {

// Enough for a person to look at; a partition would name thousands.
constexpr size_t kMaxRanksNamed = 8;

absl::Status Missing(absl::string_view prefix, const std::vector<int32_t>& missing) {
  const size_t named = std::min(missing.size(), kMaxRanksNamed);
  return absl::DeadlineExceededError(absl::StrCat(
      "connecting the ", prefix, " transport: rank", missing.size() == 1 ? " " : "s ",
      absl::StrJoin(missing.begin(), missing.begin() + static_cast<std::ptrdiff_t>(named), ", "),
      missing.size() > named ? absl::StrCat(" and ", missing.size() - named, " more") : "",
      " did not show up in time"));
}

}  // namespace

std::string AddressKey(absl::string_view prefix, Rank rank) {
  return absl::StrCat(prefix, "/", ToInt(rank));
}

absl::StatusOr<std::vector<std::string>> AwaitAddresses(Store& store, absl::string_view prefix,
                                                        absl::Span<const Rank> ranks,
                                                        absl::Time deadline) {
  std::vector<std::string> addresses;
  std::vector<int32_t> missing;
  for (Rank rank : ranks) {
    absl::StatusOr<std::string> address = store.Get(AddressKey(prefix, rank), deadline);
    if (address.ok()) {
      addresses.push_back(*std::move(address));
    } else if (absl::IsDeadlineExceeded(address.status())) {
      // The deadline has passed: the remaining calls only look.
      missing.push_back(ToInt(rank));
    } else {
      return address.status();
    }
  }
  if (!missing.empty()) return Missing(prefix, missing);
  return addresses;
}

}  // namespace coordd
