#include "client/coordctl/target.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coordd {
namespace {

Target Named(const std::string& address, const TlsFiles& given, absl::Span<const Connection> live) {
  if (given.enabled()) return {address, given};
  for (const Connection& connection : live) {
    if (connection.listen == address) return {address, connection.tls};
  }
  return {address, {}};
}

}  // namespace

absl::StatusOr<Target> ChooseTarget(const TargetRequest& request, const Environment& environment,
                                    absl::Span<const Connection> live) {
  if (!request.coordinator.empty()) return Named(request.coordinator, request.tls, live);
  if (const std::string address = Variable(environment, "COORDD_ADDR"); !address.empty()) {
    const TlsFiles from_environment = {.cert = Variable(environment, "COORDD_TLS_CERT"),
                                       .key = Variable(environment, "COORDD_TLS_KEY"),
                                       .ca = Variable(environment, "COORDD_TLS_CA")};
    return Named(address, request.tls.enabled() ? request.tls : from_environment, live);
  }
  if (live.empty()) {
    return absl::NotFoundError(
        "no coordd of yours runs on this machine; name one with --coordinator HOST:PORT");
  }
  if (live.size() > 1) {
    const std::string addresses =
        absl::StrJoin(live, ", ", [](std::string* out, const Connection& connection) {
          absl::StrAppend(out, connection.listen, " (pid ", connection.pid, ")");
        });
    return absl::FailedPreconditionError(
        absl::StrCat(live.size(), " coordds of yours run on this machine: ", addresses,
                     "; name one with --coordinator HOST:PORT"));
  }
  return Target{live[0].listen, request.tls.enabled() ? request.tls : live[0].tls};
}

}  // namespace coordd
