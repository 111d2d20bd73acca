// A small certificate authority for one installation or one run. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/identity.h"
#include "common/grpc/tls.h"

namespace coordd {

struct CertOptions {
  std::vector<std::string>
      server_names;  // DNS names and IP addresses of coordd, besides localhost, 127.0.0.1 and ::1
  absl::Duration lifetime = absl::Hours(24 * 365);
  // Of the authority, which has to outlive what it signs later; at least as long as `lifetime`.
  absl::Duration authority_lifetime = absl::ZeroDuration();
  // Of those who speak to coordd; each goes into files that are called after its role.
  std::vector<Identity> clients = {{Role::kWorker, kAnyName}, {Role::kOperator, "owner"}};
};

// Writes ca.crt, ca.key, server.crt, server.key, and ROLE.crt and ROLE.key of each client into
// `directory` (created with mode 0700; keys 0600; EC P-256). ALREADY_EXISTS: one of them is there;
// nothing was written.
absl::Status MakeCertificates(const std::string& directory, const CertOptions& options);

struct AddOptions {
  absl::Duration lifetime = absl::Hours(24 * 365);
  // What is there already is replaced, both files or neither, and keeps its owners and modes.
  bool renew = false;
};

// Writes STEM.crt and STEM.key of one more client, signed by the ca.key in `directory`.
// ALREADY_EXISTS: one of them is there, and is not to be replaced; NOT_FOUND: it is to be replaced
// and is not there, or there is no ca.key;
// INVALID_ARGUMENT: it is no authority of MakeCertificates, or has expired.
absl::Status AddCertificate(const std::string& directory, const std::string& stem,
                            const Identity& client, const AddOptions& options);
// The same of server.crt and server.key, for a server of these names. Without any: of those of the
// server.crt that is there; none where there is none.
absl::Status AddServerCertificate(const std::string& directory, std::vector<std::string> names,
                                  const AddOptions& options);
// The DNS names and IP addresses in the server.crt in `directory`; none where there is none.
// INTERNAL: it cannot be read.
absl::StatusOr<std::vector<std::string>> ServerNamesIn(const std::string& directory);

// The files that these wrote, as each side uses them.
TlsFiles ServerTlsFiles(const std::string& directory);
TlsFiles WorkerTlsFiles(const std::string& directory);
TlsFiles RoleTlsFiles(const std::string& directory, Role role);
// Those of who looks after the coordd whose files are in `directory`: an operator's, or a worker's
// where there is none, as before coordd knew roles. Empty: neither is there, or can be used.
TlsFiles OperatorTlsFiles(const std::string& directory);

}  // namespace coordd
