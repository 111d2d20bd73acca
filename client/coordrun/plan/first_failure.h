// Which worker failed first, as coordd has seen it. PURE
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/coordrun/plan/run_state.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

bool SaidGoodbye(const v1::Departure& departure);

struct FirstFailure {
  int32_t worker = 0;
  std::string what;  // "ValueError: bad batch", as its program has said it; empty: it has not
};

// The first one of those that failed to leave the generation: which process ends first says little,
// since one that others fail for lack of may take longer to end than they do. Whoever said goodbye
// and then ended with an error counts as well; whoever coordrun has ended does not, nor one of whom
// coordd knows nothing. `launches`: of each worker of the run, as coordd knows it. Nothing: coordd
// has seen no failure.
std::optional<FirstFailure> FindFirstFailure(const v1::ServerState& state, const std::string& job,
                                             const std::vector<std::string>& launches,
                                             const RunState& run);

}  // namespace coordd
