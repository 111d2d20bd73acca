// How the processes of a job find the coordd that one of them has started. (io)
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/grpc/tls.h"
#include "common/net/address.h"

namespace coordd {

struct RendezvousRecord {
  std::string instance;             // LaunchPlace::instance of the job that it is for
  std::vector<HostPort> addresses;  // of coordd, the likeliest first
  std::string http;                 // its status page, on its own machine; empty: off
  std::string token_file;           // absolute paths, as is all of `tls`: a worker's files
  TlsFiles tls;
  int pid = 0;
  std::string host;  // where it runs, for people
};

// Makes `path` and what is missing above it with mode 0700. FAILED_PRECONDITION: the last one is
// not ours or others may write to it; UNAVAILABLE.
absl::Status MakePrivateDirectories(const std::string& path);

// Writes JSON with mode 0600, whole or not at all.
absl::Status WriteRendezvousFile(const std::string& path, const RendezvousRecord& record);

// NOT_FOUND: it is not there (yet). FAILED_PRECONDITION: it belongs to somebody else.
// INVALID_ARGUMENT: it is none. Lists the directory first, without which a network file system may
// answer from memory that the file is not there.
absl::StatusOr<RendezvousRecord> ReadRendezvousFile(const std::string& path);

// Removes our directories below `parent` that were made before `oldest`: those of runs that had no
// time to do it themselves.
void PruneRunDirectories(const std::string& parent, absl::Time oldest);

}  // namespace coordd
