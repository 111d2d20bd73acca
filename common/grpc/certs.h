// A small certificate authority for one installation or one run. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/grpc/tls.h"

namespace coordd {

struct CertOptions {
  std::vector<std::string>
      server_names;  // DNS names and IP addresses of coordd, besides localhost, 127.0.0.1 and ::1
  absl::Duration lifetime = absl::Hours(24 * 365);
};

// Writes ca.crt, ca.key, server.crt, server.key, worker.crt, worker.key into `directory` (created
// with mode 0700; keys 0600; EC P-256). ALREADY_EXISTS: one of them is there; nothing was written.
absl::Status MakeCertificates(const std::string& directory, const CertOptions& options);

// The files that MakeCertificates wrote, as each side uses them.
TlsFiles ServerTlsFiles(const std::string& directory);
TlsFiles WorkerTlsFiles(const std::string& directory);

}  // namespace coordd
