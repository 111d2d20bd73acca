// What has happened at a coordd, as text for people and as JSON for programs. PURE
#pragma once

#include <string>

#include "absl/time/time.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

// "2026-11-21 22:31:04  warning  worker_departed      train, generation 3: rank 2 (host node3, pid
// 4711) was lost: …". docs/RUNBOOK.md has what to do by the kind in the middle.
std::string EventText(const v1::JobEvent& event, absl::TimeZone zone);
// A line for each event; a line that says so where there is none.
std::string EventsText(const v1::EventList& list, absl::TimeZone zone);

// The request that goes on following: behind what `list` has brought, or at the start of a coordd
// that has been started again since `epoch` (0: not asked yet).
v1::GetEventsRequest NextRequest(const v1::GetEventsRequest& request, const v1::EventList& list,
                                 int64_t epoch);

}  // namespace coordd
