// Where the programs are that others wait for: each is asked once while it is missing. PURE
#pragma once

#include <string>

#include "absl/time/time.h"
#include "server/generation/generation_state.h"
#include "server/job/job_workers.h"

namespace coordd {

// Whether a member is to be asked now. One that has come is not asked, and what it had said is
// forgotten.
bool WantsStack(JobWorker& member, GenerationState& state, absl::Time now);
// What it has answered; returns where it is, a phrase. Empty: nobody has asked, or it knows
// nothing.
std::string NoteStack(JobWorker& member, const std::string& stack, GenerationState& state);

}  // namespace coordd
