// Mutual TLS for gRPC: credentials from files. (io)
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace coordd {

// Paths of PEM files. All are set, or all are empty (no TLS).
struct TlsFiles {
  std::string cert;  // this side's certificate chain
  std::string key;   // its private key; refused when others than the owner can read it
  std::string ca;    // who signs the other side's certificate

  bool enabled() const { return !cert.empty() || !key.empty() || !ca.empty(); }
  // INVALID_ARGUMENT: names the option that is missing, the file that cannot be read, or the key
  // that others can read.
  absl::Status Validate() const;
};

// What is in these files.
struct TlsPems {
  std::string cert, key, ca;
  bool operator==(const TlsPems&) const = default;
};
// INVALID_ARGUMENT: as Validate, also where none are set.
absl::StatusOr<TlsPems> ReadTls(const TlsFiles& files);

// One of them. `what` names it: "key". INVALID_ARGUMENT: it cannot be read, or is no file, which
// is not waited for.
absl::StatusOr<std::string> ReadPem(absl::string_view what, const std::string& path);

// The credentials of a server. Without TLS they are insecure. Otherwise both sides show
// certificates, and the client checks the server's name.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFrom(
    const TlsFiles& files);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFrom(
    const TlsFiles& files);

}  // namespace coordd
