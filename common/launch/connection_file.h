// How operators' tools find a running coordd without arguments. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/environment.h"
#include "common/grpc/tls.h"

namespace coordd {

struct Connection {
  std::string listen;  // gRPC, host:port
  std::string http;    // host:port; empty: off
  int pid = 0;
  std::string version;
  TlsFiles tls;  // what a client on this machine presents; empty: no TLS
};

// $XDG_RUNTIME_DIR/coordd, else /tmp/coordd-UID. Created with mode 0700; FAILED_PRECONDITION when
// it belongs to somebody else.
absl::StatusOr<std::string> ConnectionDirectory(const Environment& environment);

// JSON, mode 0600, written whole or not at all (rename). `path`: a file. The paths in it become
// absolute ones.
absl::Status WriteConnectionFile(const std::string& path, const Connection& connection);
absl::StatusOr<Connection> ReadConnectionFile(const std::string& path);

// The connections in `directory` whose process is alive; files of dead ones are removed. `unusable`
// (may be null) receives what is wrong with the first file that cannot be read or holds no
// connection.
std::vector<Connection> LiveConnections(const std::string& directory,
                                        absl::Status* unusable = nullptr);

// Where deploy/systemd's service keeps its connection file, as a user of its own, and where its
// administrator has put the certificates of `coordctl certs`.
inline constexpr char kServiceConnections[] = "/run/coordd/coordd";
inline constexpr char kServiceCertificates[] = "/etc/coordd/tls";

// Those of a service that runs as another user, which only root can read: `directory` belongs to
// that user, and nobody else can write it. A coordd that names no certificate for clients is given
// that of `certificates` which is for operators (OperatorTlsFiles), if there is one. Empty where
// there is no such directory. Nothing is removed.
std::vector<Connection> ServiceConnections(const std::string& directory,
                                           const std::string& certificates);

}  // namespace coordd
