// Which coordd an operator means: values in, values out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/environment.h"
#include "common/grpc/tls.h"
#include "common/launch/connection_file.h"

namespace coordd {

struct Target {
  std::string address;  // host:port; of several that stand by for each other, the first
  TlsFiles tls;
  // A call is tried again for so long where coordd closes connections; at least for its timeout.
  absl::Duration tries_for = absl::ZeroDuration();
  // Of the job that is asked for; empty: none is brought.
  std::string token = {};
  // Of coordds that stand by for each other: the other ones. The one that serves is asked.
  std::vector<std::string> standbys = {};

  // All of them, for people.
  std::string AddressText() const;
};

struct TargetRequest {
  std::optional<std::string> coordinator;  // --coordinator; nothing: not given
  TlsFiles tls;                            // --tls-...; empty: not given
};

// The one that is named, by option or by COORDD_ADDR (several that stand by for each other, with
// commas between); else the only one that runs on this machine
// (`live`: their connection files). Certificates are those of the options; else those of
// COORDD_TLS_*, which also stand in for single options that are not given; else those that the
// connection file names, if it runs on this machine. NOT_FOUND: none runs. FAILED_PRECONDITION:
// several do; names them. INVALID_ARGUMENT: what is named is no HOST:PORT.
absl::StatusOr<Target> ChooseTarget(const TargetRequest& request, const Environment& environment,
                                    absl::Span<const Connection> live);

}  // namespace coordd
