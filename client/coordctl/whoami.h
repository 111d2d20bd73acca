// What coordctl whoami prints. PURE
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/grpc/tls.h"
#include "common/launch/launcher_detect.h"

namespace coordd {

// How a worker here would speak to its coordd.
struct WorkerConnection {
  TlsFiles tls;           // of its variables; without any it is in plain
  std::string who;        // what its certificate says of it
  std::string authority;  // that has signed it
  std::string end;        // of its validity
  std::string trusted;    // the authorities in tls.ca; empty: not known
  std::string problem;    // why it cannot be used; empty: it can
};

// `coordinator`: one sentence on how a worker here would find its coordd; empty: left out.
std::string WhoamiText(const LaunchPlace& place, const std::string& coordinator,
                       const WorkerConnection& connection);
// The same place as a JSON object; numbers that are not known are null.
std::string WhoamiJson(const LaunchPlace& place, const std::string& coordinator,
                       const WorkerConnection& connection);

// INVALID_ARGUMENT: whoami was told a coordd, which it would not ask; what does.
absl::Status WhoamiOfACoordd(const std::string& coordinator);

}  // namespace coordd
