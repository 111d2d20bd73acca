#include "client/coordctl/target.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/net/address.h"

namespace coordd {
namespace {

// Each option by itself, else its variable.
TlsFiles GivenTls(const TlsFiles& options, const Environment& environment) {
  const auto either = [&](const std::string& option, const char* variable) {
    return option.empty() ? Variable(environment, variable) : option;
  };
  return {.cert = either(options.cert, "COORDD_TLS_CERT"),
          .key = either(options.key, "COORDD_TLS_KEY"),
          .ca = either(options.ca, "COORDD_TLS_CA")};
}

// An option beats its variable, and a variable what the connection file says of one that runs here.
Target Named(const std::string& address, const TargetRequest& request,
             const Environment& environment, absl::Span<const Connection> live) {
  const TlsFiles given = GivenTls(request.tls, environment);
  if (!given.enabled()) {
    for (const Connection& connection : live) {
      if (connection.listen == address) return {address, connection.tls};
    }
  }
  return {address, given};
}

absl::Status CheckAddress(const char* name, const std::string& text) {
  const absl::Status parsed = ParseHostPort(text).status();
  return parsed.ok() ? parsed
                     : absl::InvalidArgumentError(absl::StrCat(name, ": ", parsed.message()));
}

}  // namespace

absl::StatusOr<Target> ChooseTarget(const TargetRequest& request, const Environment& environment,
                                    absl::Span<const Connection> live) {
  if (request.coordinator.has_value()) {
    // Perhaps of a variable that is not set: what was meant is not whatever runs here.
    if (request.coordinator->empty())
      return absl::InvalidArgumentError("--coordinator is empty, expected HOST:PORT");
    COORDD_RETURN_IF_ERROR(CheckAddress("--coordinator", *request.coordinator));
    return Named(*request.coordinator, request, environment, live);
  }
  if (const std::string address = Variable(environment, "COORDD_ADDR"); !address.empty()) {
    COORDD_RETURN_IF_ERROR(CheckAddress("COORDD_ADDR", address));
    return Named(address, request, environment, live);
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
  return Named(live[0].listen, request, environment, live);
}

}  // namespace coordd
