// What coordd has seen of a run's job, in sentences. PURE
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/coordrun/plan/report.h"
#include "client/coordrun/plan/run_options.h"
#include "client/coordrun/plan/run_state.h"
#include "coordd/v1/admin.pb.h"

namespace coordd {

// Makes one job of the run's: its own, and those of groups of its workers, which are called after
// it ("train.group-1f", as torch.distributed's are). Departures are in the order in which these
// jobs ended; figures are sums, since each counts what its own members have moved. A job in which
// none of `launches` has been is another run's, and stays as it is.
void JoinGroups(const std::string& job, const std::vector<std::string>& launches,
                v1::ServerState* state);

// Sentences about who has departed without a goodbye and what is stalled, in coordd's view; at most
// some. Of those who failed because another one had gone there is the number alone.
std::vector<std::string> DescribeView(const v1::ServerState& state, const std::string& job);

// What coordd says about the job: to the view what is not in it yet, in the place of what was known
// of the same worker before, and the figures. Nothing, where none of `launches` has been in it: it
// is another run's, which has the name. (All empty: how ours are called is not known.)
void AddView(const v1::ServerState& state, const std::string& job,
             const std::vector<std::string>& launches, RunReport* report);

// "rank 0 (pid 4711) ended with status 0 while others waited for it in allreduce.a, and": one that
// said goodbye too early for the others, as the error of one of them says that failed. Empty: none.
std::string EarlyGoodbye(const v1::ServerState& state, const RunOptions& options,
                         const RunState& run, const std::vector<std::string>& launches,
                         const RunReport& report);

}  // namespace coordd
