// Whether the other side can take what this side presents. (io)
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/grpc/tls.h"

namespace coordd {

enum class TlsSide { kServer, kClient };

// TlsFiles::Validate, and then what the other side will ask of our certificate: that it is valid
// now, is made for this side, and, of a server, names somebody. Not whose it is: servers and
// clients may have authorities of their own, and `files.ca` is the other side's. INVALID_ARGUMENT:
// one sentence that names the file.
absl::Status CheckOwnCertificate(const TlsFiles& files, TlsSide side);
// The same of what is in `file`, without Validate.
absl::Status CheckOwnPem(const std::string& pem, const std::string& file, TlsSide side);

// What a certificate says, for people.
struct CertificateFacts {
  std::string who;        // its URIs with commas between (coordd://worker/train7), else its name
  std::string authority;  // that has signed it
  absl::Time begin, end;  // of its validity
};
// Of the first in `file`. INVALID_ARGUMENT: names the file.
absl::StatusOr<CertificateFacts> ReadCertificateFacts(const std::string& file);
// The names of the authorities in `file`, with " and " between; empty: none can be read.
std::string AuthoritiesIn(const std::string& file);

}  // namespace coordd
