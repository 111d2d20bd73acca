// How a worker has gone, for those who stay. PURE
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordd/v1/session.pb.h"
#include "server/generation/readiness_table.h"
#include "server/job/current_generation.h"
#include "server/job/drains.h"
#include "server/job/job_history.h"
#include "server/job/job_messages.h"
#include "server/job/job_workers.h"
#include "server/job/reforming.h"
#include "server/model/effects.h"

namespace coordd {

// What its going does to its generation, which has this damage so far. Who was asked to go goes as
// the members agree on: others follow, where any do.
Damage DamageOf(v1::DepartureCause cause, const Reforming& reforming, Damage so_far);

// `detail`: of the cause, as it was seen. Departure.detail goes on after "rank 2 (host node3, pid
// 4711) ". `lost`: without a goodbye, so that its GPU may have to do with it.
v1::Departure DepartureOf(const JobWorker& worker, v1::DepartureCause cause,
                          absl::string_view detail, bool lost);
// Of those who had not come back to their generation: each is remembered and told, but for those
// whose departure is known from before. As the others hear of them.
std::vector<v1::Departure> NoteDepartures(const std::vector<v1::Departure>& departures,
                                          Drains& drains, JobHistory& history,
                                          const JobMessages& messages, Effects& effects);
// "1 member, who has ", "4 members, who have ".
std::string MembersWho(size_t members);
// "all 4 ranks are back "; "its rank is back ".
std::string AllAreBack(size_t ranks);
// The words of cause and detail, of one who lives.
std::string DepartureText(v1::DepartureCause cause, absl::string_view detail);

// "rank 2 (host node3, pid 4711) reported that tensor a failed: its peer was closed".
// `is_rank`: the generation has the rank that it suspects, which is `blamed`, if that is still
// there. `waited_in`: the call of a comm in which it has waited, as its heartbeats tell.
std::string FailureText(const JobWorker& witness, const v1::CollectiveFailed& failed, bool is_rank,
                        const JobWorker* blamed, const std::optional<PendingTensor>& waited_in);

}  // namespace coordd
