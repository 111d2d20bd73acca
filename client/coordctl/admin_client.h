// Asks a coordd about its state. (io)
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/coordctl/target.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

// Each blocks up to `timeout`, or `target.tries_for` where coordd is so crowded that it closes
// connections.
//
// Of several addresses it is the one that serves (serving_one.h), which takes up to kServesWithin
// more where none does.
//
// `job` empty: all. UNAVAILABLE: says which coordd cannot be reached, or what is no coordd, and
// what the transport saw; the statuses of Admin.GetState otherwise.
absl::StatusOr<v1::ServerState> FetchState(const Target& target, const std::string& job,
                                           absl::Duration timeout);

// Lets a job's ranks record what they execute. Blocks until that is done, `timeout` at most; Ctrl-C
// ends the recording, too. Statuses: those of Admin.Trace.
absl::StatusOr<v1::TraceReply> FetchTrace(const Target& target, const v1::TraceRequest& request,
                                          absl::Duration timeout);

// Fetches what has happened. Statuses: those of Admin.GetEvents.
absl::StatusOr<v1::EventList> FetchEvents(const Target& target, const v1::GetEventsRequest& request,
                                          absl::Duration timeout);

// Makes workers go, or stay. Blocks up to `timeout`. Statuses: those of Admin.Dismiss.
absl::StatusOr<v1::DismissReply> DismissWorkers(const Target& target,
                                                const v1::DismissRequest& request,
                                                absl::Duration timeout);

// Tells how processes have ended. Statuses: those of Admin.ReportExits.
absl::StatusOr<v1::ReportExitsReply> ReportExits(const Target& target,
                                                 const v1::ReportExitsRequest& request,
                                                 absl::Duration timeout);

}  // namespace coordd
