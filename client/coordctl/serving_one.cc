#include "client/coordctl/serving_one.h"

#include "absl/strings/str_cat.h"
#include "common/base/wait_until.h"

namespace coordd {
namespace {

constexpr absl::Duration kLooksAgainAfter = absl::Milliseconds(250);

bool IsFinal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsUnauthenticated(status);
}

}  // namespace

absl::StatusOr<Target> ServingOne(const Target& target, const ProbeAddress& probe, Clock& clock) {
  std::vector<std::string> addresses = {target.address};
  addresses.insert(addresses.end(), target.standbys.begin(), target.standbys.end());
  const absl::Time end = clock.Now() + kServesWithin;
  while (true) {
    std::string found;
    absl::StatusCode code = absl::StatusCode::kUnavailable;
    for (const std::string& address : addresses) {
      const absl::Status status = probe(address);
      if (status.ok()) {
        Target serving = target;
        serving.address = address;
        serving.standbys.clear();
        return serving;
      }
      if (IsFinal(status)) code = status.code();
      absl::StrAppend(&found, found.empty() ? "" : "; ", address, ": ", status.message());
    }
    if (code != absl::StatusCode::kUnavailable || clock.Now() >= end) {
      return absl::Status(code, absl::StrCat("none of the ", addresses.size(),
                                             " coordds that are named serves: ", found));
    }
    WaitUntil(clock, clock.Now() + kLooksAgainAfter);
  }
}

}  // namespace coordd
