// What ddlrun's flags and variables mean for a run: how many workers each host has, and where the
// hosts are in the network. PURE
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/coordrun/plan/run_options.h"
#include "common/base/environment.h"
#include "common/launch/ddl_topology.h"
#include "common/launch/host_list.h"

namespace coordd {

// The shape of --mode and of the flags for its numbers. INVALID_ARGUMENT: they differ, or the mode
// is none.
absl::StatusOr<DdlShape> DdlShapeOf(const RunOptions& options);

// Takes the hosts of DDL_HOST_LIST where the options name none and leave the launcher to coordrun,
// and the shape of DDL_OPTIONS where they say none; notes say so. INVALID_ARGUMENT: a variable is
// none of DDL's.
absl::Status UseDdlVariables(const Environment& environment, RunOptions* options);

// Gives each host as many slots as the shape has accelerators. Returns each host's COORDD_TOPOLOGY,
// "aisle1/rack2"; all are empty with one rack. `allocated`: the slots are a scheduler's, which
// counts cores. INVALID_ARGUMENT: hosts, slots or -np do not fit the shape. REQUIRES:
// options.ddl.asked().
absl::StatusOr<std::vector<std::string>> ShapeHosts(const RunOptions& options, bool allocated,
                                                    std::vector<HostSlots>* hosts);

// The workers of each of so many hosts whose names are not known, of one rack. INVALID_ARGUMENT: as
// above. REQUIRES: options.ddl.asked().
absl::StatusOr<int32_t> ShapeNodes(const RunOptions& options, int32_t nodes);

}  // namespace coordd
