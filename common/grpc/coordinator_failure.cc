#include "common/grpc/coordinator_failure.h"

#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/grpc/grpc_status.h"

namespace coordd {
namespace {

// A crowded coordd that ends a connection in this moment by chance does not do it each time.
constexpr int kAbortedMax = 3;

// "DNS resolution failed for HOST:PORT: ...", of gRPC 1.51 and later ones.
absl::Status OfAName(absl::string_view said) {
  constexpr absl::string_view kFailed = "DNS resolution failed for ";
  if (!absl::StartsWith(said, kFailed)) return absl::OkStatus();
  const absl::string_view rest = said.substr(kFailed.size());
  const absl::string_view host = rest.substr(0, rest.substr(0, rest.find(": ")).rfind(':'));
  const bool unknown = absl::StrContains(said, "Domain name not found") ||
                       absl::StrContains(said, "no data") || absl::StrContains(said, "not known");
  const size_t last = said.rfind(": ");
  return absl::UnavailableError(
      unknown ? absl::StrCat("the host name ", host, " is not known here")
              : absl::StrCat("the host name ", host, " cannot be looked up",
                             last == absl::string_view::npos ? "" : said.substr(last)));
}

bool IsOften(int attempts) { return attempts <= 4 || (attempts & (attempts - 1)) == 0; }

}  // namespace

CoordinatorFailure::CoordinatorFailure(std::function<absl::Status()> probe)
    : probe_(std::move(probe)) {}

absl::Status CoordinatorFailure::Explain(const absl::Status& status) {
  if (!IsOfTheWay(status)) {
    of_coordd_ = status;
    return status;
  }
  ++attempts_;
  absl::Status known = OfAName(status.message());
  if (known.ok() && IsRefused(status)) known = ForPeople(status);
  if (!known.ok()) {
    of_coordd_ = absl::OkStatus();  // who has said it has gone
    return found_ = known;
  }
  if (probe_ == nullptr || !IsOften(attempts_)) return Last(status);
  return Probed(status);
}

absl::Status CoordinatorFailure::Probed(const absl::Status& status) {
  absl::Status found = probe_();
  aborted_ = absl::IsAborted(found) ? aborted_ + 1 : 0;
  if (aborted_ >= kAbortedMax) return absl::UnauthenticatedError(found.message());
  if (absl::IsAborted(found)) found = absl::UnavailableError(found.message());
  // What was wrong has gone: the next attempt may do.
  found_ = found.ok() ? absl::OkStatus() : found;
  if (absl::IsFailedPrecondition(found) || absl::IsUnauthenticated(found)) return found;
  return Last(status);
}

absl::Status CoordinatorFailure::Last(const absl::Status& status) const {
  if (!IsOfTheWay(status)) return status;
  if (!of_coordd_.ok()) return of_coordd_;
  return found_.ok() ? ForPeople(status) : found_;
}

}  // namespace coordd
