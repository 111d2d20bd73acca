// How operators' tools find a running coordd without arguments. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/environment.h"
#include "common/tls.h"

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

// JSON, mode 0600, written whole or not at all (rename). `path`: a file.
absl::Status WriteConnectionFile(const std::string& path, const Connection& connection);
absl::StatusOr<Connection> ReadConnectionFile(const std::string& path);

// Those in `directory` whose process is alive; files of dead ones are removed.
std::vector<Connection> LiveConnections(const std::string& directory);

}  // namespace coordd
