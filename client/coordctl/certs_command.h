// `coordctl certs`: what is made, and what is printed about it. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/environment.h"
#include "common/base/identity.h"

namespace coordd {

struct CertsArguments {
  std::string directory;
  std::string role;                // empty: a new authority, with certificates for all; or "server"
  std::vector<std::string> names;  // of coordd's hosts; with a role, of whom it is
  int days = 0;                    // 0: not given
  int authority_days = 3650;
  bool renew = false;  // one that is there is replaced
};

// Whose certificate is asked for. REQUIRES: a role is given. `environment`: has USER, whose name
// stands where none is given. INVALID_ARGUMENT: it is no role, or there is more than one name, or
// one that cannot be.
absl::StatusOr<Identity> IdentityAskedFor(const CertsArguments& arguments,
                                          const Environment& environment);

// Writes the files. Returns what is to be printed, lines or with `as_json` an object. Statuses:
// those of IdentityAskedFor, MakeCertificates and AddCertificate.
absl::StatusOr<std::string> MakeCerts(const CertsArguments& arguments, bool as_json,
                                      const Environment& environment);

}  // namespace coordd
