// Whether the other side can take what this side presents. (io)
#pragma once

#include "absl/status/status.h"
#include "common/grpc/tls.h"

namespace coordd {

enum class TlsSide { kServer, kClient };

// TlsFiles::Validate, and then what the other side will ask of our certificate: that it is valid
// now, is made for this side, names somebody, and is of the authority in `files.ca`, as all
// certificates of one coordd are. INVALID_ARGUMENT: one sentence that names the file.
absl::Status CheckOwnCertificate(const TlsFiles& files, TlsSide side);

}  // namespace coordd
