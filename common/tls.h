// Mutual TLS for gRPC: credentials from files. (io)
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace coordd {

// PEM files. All set, or all empty (no TLS).
struct TlsFiles {
  std::string cert;  // this side's certificate chain
  std::string key;   // its private key; refused when others than the owner can read it
  std::string ca;    // who signs the other side's certificate

  bool enabled() const { return !cert.empty() || !key.empty() || !ca.empty(); }
  // INVALID_ARGUMENT: names the option that is missing, the file that cannot be read, or the key
  // that others can read.
  absl::Status Validate() const;
};

// Without TLS: insecure credentials. TLS 1.3 with certificates on both sides otherwise.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFrom(
    const TlsFiles& files);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFrom(
    const TlsFiles& files);

}  // namespace coordd
