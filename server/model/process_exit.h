// What a launcher tells about a process that has ended, in words. PURE
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordd/v1/admin.pb.h"
#include "coordd/v1/types.pb.h"

namespace coordd {

// How long the end of a member's stream waits for the launcher to tell why, when one has started
// the member: as a rule it learns of the end within milliseconds, and is a message away. But the
// kernel closes the sockets of a large process first, and on a busy machine takes some hundred
// milliseconds to end it. Members in the middle of a collective stand still meanwhile.
inline constexpr absl::Duration kExitWait = absl::Milliseconds(500);

// Exits in a request, as large as a launcher sends them; well below gRPC's 1 MiB.
inline constexpr int kMaxExits = 1024;

// The exit in one line: "it was killed by SIGKILL; last on stderr: out of memory".
std::string ExitText(const v1::ProcessExit& exit);
// How an error message continues after "rank 2 (host node3, pid 4711) ".
std::string LossText(const v1::ProcessExit& exit);
// Whether the process ended by itself, with status 0.
bool EndedWell(const v1::ProcessExit& exit);

// INVALID_ARGUMENT: names the field, what was found and what was expected.
absl::Status ValidateExits(const v1::ReportExitsRequest& request);

}  // namespace coordd
