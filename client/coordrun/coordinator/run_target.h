// How coordrun itself speaks to the coordd of its run. (io)
#pragma once

#include "client/coordctl/target.h"
#include "client/coordrun/plan/worker_environment.h"

namespace coordd {

// With a launcher's certificate, and the job's token as its file has it now: without one where that
// cannot be read, of which the workers speak.
Target TargetOf(const Rendezvous& rendezvous);

}  // namespace coordd
