#include "client/coordctl/target.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
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
// REQUIRES: `addresses` has one at least.
Target Named(std::vector<std::string> addresses, const TargetRequest& request,
             const Environment& environment, absl::Span<const Connection> live) {
  TlsFiles tls = GivenTls(request.tls, environment);
  if (!tls.enabled()) {
    for (const Connection& connection : live) {
      if (!absl::c_linear_search(addresses, connection.listen)) continue;
      tls = connection.tls;
      break;
    }
  }
  Target target{addresses.front(), std::move(tls)};
  target.standbys.assign(addresses.begin() + 1, addresses.end());
  return target;
}

// What is named by `name`: one, or several with commas between.
absl::StatusOr<std::vector<std::string>> AddressesIn(const char* name, const std::string& text) {
  std::vector<std::string> addresses = absl::StrSplit(text, ',');
  for (const std::string& address : addresses) {
    const absl::Status parsed = ParseHostPort(address).status();
    if (!parsed.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", parsed.message()));
  }
  return addresses;
}

}  // namespace

std::string Target::AddressText() const {
  std::string text = address;
  for (const std::string& other : standbys) absl::StrAppend(&text, ",", other);
  return text;
}

absl::StatusOr<Target> ChooseTarget(const TargetRequest& request, const Environment& environment,
                                    absl::Span<const Connection> live) {
  if (request.coordinator.has_value()) {
    // Perhaps of a variable that is not set: what was meant is not whatever runs here.
    if (request.coordinator->empty())
      return absl::InvalidArgumentError("--coordinator is empty, expected HOST:PORT");
    COORDD_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                            AddressesIn("--coordinator", *request.coordinator));
    return Named(std::move(addresses), request, environment, live);
  }
  if (const std::string address = Variable(environment, "COORDD_ADDR"); !address.empty()) {
    COORDD_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                            AddressesIn("COORDD_ADDR", address));
    return Named(std::move(addresses), request, environment, live);
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
  return Named({live[0].listen}, request, environment, live);
}

}  // namespace coordd
