#include "worker/gpu/plane/window_claim.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

std::string TextOf(const WindowClaim& claim) {
  if (claim.allocation_bytes == 0) {
    return absl::StrCat(claim.size_bytes, " bytes that do not begin memory of coordd_alloc_device");
  }
  return absl::StrCat(claim.size_bytes, " of ", claim.allocation_bytes,
                      " bytes of coordd_alloc_device");
}

bool CanBeWindow(const WindowClaim& claim) {
  return claim.size_bytes > 0 && claim.allocation_bytes >= claim.size_bytes;
}

}  // namespace

std::string WhyNoWindow(absl::Span<const std::byte> claims, int32_t size) {
  std::vector<WindowClaim> all(claims.size() / sizeof(WindowClaim));
  if (!all.empty()) std::memcpy(all.data(), claims.data(), all.size() * sizeof(WindowClaim));
  if (all.empty() || static_cast<int32_t>(all.size()) != size) {
    const int32_t joined = size - static_cast<int32_t>(all.size());
    return absl::StrCat(joined, joined == 1 ? " rank has" : " ranks have", " called coordd_join");
  }
  const WindowClaim& first = all.front();
  const auto odd = std::find_if(all.begin(), all.end(), [&](const WindowClaim& claim) {
    return claim != first || !CanBeWindow(claim);
  });
  if (odd == all.end()) return "";
  const auto rank = odd - all.begin();
  if (rank == 0) return absl::StrCat("rank 0 gave ", TextOf(first));
  WindowClaim as_first = *odd;
  as_first.windows = first.windows;
  if (as_first == first)
    return absl::StrCat("rank ", rank, " has other windows registered than rank 0");
  return absl::StrCat("rank ", rank, " gave ", TextOf(*odd), ", rank 0 ", TextOf(first));
}

int64_t DigestOf(absl::Span<const int64_t> numbers) {
  uint64_t digest = 14695981039346656037u;
  for (int64_t number : numbers) digest = (digest ^ static_cast<uint64_t>(number)) * 1099511628211u;
  return static_cast<int64_t>(digest);
}

}  // namespace coordd
