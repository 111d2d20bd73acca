// A server's certificates, which may be replaced while it serves. (io)
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/grpc/tls.h"

namespace coordd {

// Thread-safe.
class ServerCertificates {
 public:
  // What a client's certificate may have with those that it brings for its authorities: four of the
  // largest keys. Two hundred small ones would take 75 ms of a processor, whoever sends them.
  static constexpr long kMostChainBytes = 16 << 10;
  static constexpr int kMostAuthorities = 4;  // between it and one that is trusted

  // INVALID_ARGUMENT: as TlsFiles::Validate. REQUIRES: files.enabled().
  static absl::StatusOr<std::unique_ptr<ServerCertificates>> Load(const TlsFiles& files);

  // Whether the files are others than those that were read last, or have been written since; what
  // is in them is not looked at. Where one is gone, there is nothing new: whoever ends a coordd may
  // remove them first.
  bool FilesChanged() const;
  // Whether one of the files cannot be found.
  bool IsFileGone() const;
  // Reads the files again. Handshakes that begin from now on have what is in them; connections that
  // are there stay. False: it is what there was. INVALID_ARGUMENT: as Load, and nothing changes.
  absl::StatusOr<bool> Reload();

  // When the first of the server's own chain ends, or the last authority in `ca`.
  absl::Time end() const;

  // For handshakes that begin now, over HTTP/2 and TLS 1.3: clients have to present a certificate
  // of an authority in `ca`. Never null.
  std::shared_ptr<SSL_CTX> context() const;
  // The same over HTTP/1: they may present one.
  std::shared_ptr<SSL_CTX> http_context() const;

 private:
  struct Stamp {
    int64_t device = 0, file = 0, size = 0, changed_ns = 0;
    bool operator==(const Stamp&) const = default;
  };

  explicit ServerCertificates(const TlsFiles& files);
  std::vector<Stamp> Stamps() const;

  // Constant after construction.
  const TlsFiles files_;

  // Guarded by mu_.
  mutable Mutex mu_;
  TlsPems pems_ ABSL_GUARDED_BY(mu_);
  std::vector<Stamp> stamps_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SSL_CTX> http_context_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<SSL_CTX> context_ ABSL_GUARDED_BY(mu_);
};

}  // namespace coordd
