#include "client/coordrun/plan/ddl_part.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/counted.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// One number of --mode, with the flag that says it alone.
struct DdlLevel {
  const char* flag;
  int32_t DdlShape::*number;
};
constexpr DdlLevel kDdlLevels[] = {{"--accelerators", &DdlShape::accelerators},
                                   {"--nodes", &DdlShape::nodes},
                                   {"--racks", &DdlShape::racks},
                                   {"--aisles", &DdlShape::aisles}};

absl::Status NoAccelerators() {
  return absl::InvalidArgumentError(
      "how many workers each host has is not said: expected --accelerators N or -H h1:6,h2:6; "
      "ddlrun counts the GPUs of the hosts, coordrun does not");
}

absl::Status CheckDdlCount(const RunOptions& options, const DdlShape& shape, int64_t workers) {
  if (!options.np_given || options.np == workers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "-np is ", options.np, ", and the topology ", DdlShapeText(shape),
      " (accelerators x nodes x racks x aisles) has ", workers,
      " workers: expected as many, or no ",
      options.ddl.from_variable ? absl::StrCat(options.ddl.source, " (unset it)") : "-np"));
}

bool HostsAreNamed(const RunOptions& options) {
  return !options.hosts.empty() || !options.hostfile.empty();
}

absl::Status TakeDdlHosts(const std::string& list, RunOptions* options) {
  COORDD_ASSIGN_OR_RETURN(const std::vector<DdlHost> hosts, ParseDdlHostList(list));
  std::vector<std::string> named;
  for (const DdlHost& host : hosts)
    named.push_back(absl::StrCat(host.host, ":", host.ranks.size()));
  options->hosts = absl::StrJoin(named, ",");
  options->ddl.names_hosts = true;
  options->notes.push_back(absl::StrCat("the hosts are those of DDL_HOST_LIST: ", options->hosts));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DdlShape> DdlShapeOf(const RunOptions& options) {
  const RunOptions::Ddl& ddl = options.ddl;
  DdlShape shape = ddl.shape;
  if (ddl.mode.empty()) return shape;
  const absl::StatusOr<DdlShape> mode = ParseDdlMode(ddl.mode);
  if (!mode.ok())
    return absl::InvalidArgumentError(absl::StrCat(ddl.source, ": ", mode.status().message()));
  for (const DdlLevel& level : kDdlLevels) {
    int32_t& number = shape.*level.number;
    const int32_t of_mode = *mode.*level.number;
    if (number > 0 && of_mode > 0 && number != of_mode) {
      return absl::InvalidArgumentError(absl::StrCat(ddl.source, " ", ddl.mode, " has ", of_mode,
                                                     " where ", level.flag, " is ", number,
                                                     ": expected the same, or one of them"));
    }
    if (number == 0) number = of_mode;
  }
  return shape;
}

absl::Status UseDdlVariables(const Environment& environment, RunOptions* options) {
  const bool of_several = options->launcher.empty() || options->launcher == "ssh" ||
                          options->launcher == "blaunch" || options->launcher == "mpirun";
  const bool of_others = !options->discovery_script.empty() || !options->coordinator.empty() ||
                         options->size != 0 || options->pods.take_part();
  if (!of_several || of_others) return absl::OkStatus();
  const std::string hosts = Variable(environment, "DDL_HOST_LIST");
  if (!hosts.empty() && !HostsAreNamed(*options))
    COORDD_RETURN_IF_ERROR(TakeDdlHosts(hosts, options));
  const std::string mode = DdlModeIn(Variable(environment, "DDL_OPTIONS"));
  if (options->ddl.asked() || !absl::StrContains(mode, ':')) return absl::OkStatus();
  options->ddl.mode = mode;
  options->ddl.source = "DDL_OPTIONS";
  options->ddl.from_variable = true;
  options->notes.push_back(absl::StrCat("the topology is that of DDL_OPTIONS: ", mode));
  return DdlShapeOf(*options).status();
}

absl::StatusOr<std::vector<std::string>> ShapeHosts(const RunOptions& options, bool allocated,
                                                    std::vector<HostSlots>* hosts) {
  COORDD_ASSIGN_OR_RETURN(const DdlShape asked, DdlShapeOf(options));
  COORDD_ASSIGN_OR_RETURN(const DdlShape shape, FillDdlShape(asked, hosts->size()));
  int64_t workers = 0;
  std::vector<std::string> topologies;
  for (size_t i = 0; i < hosts->size(); ++i) {
    HostSlots& host = (*hosts)[i];
    if (allocated) host.slots = 0;
    if (shape.accelerators == 0 && host.slots == 0) return NoAccelerators();
    if (shape.accelerators > 0 && host.slots > 0 && host.slots != shape.accelerators) {
      return absl::InvalidArgumentError(
          absl::StrCat("host ", host.host, " has ", Counted(host.slots, "slot"),
                       ", and the topology ", DdlShapeText(shape), " has ", shape.accelerators,
                       " accelerators on each host: expected the same, or no slots behind the "
                       "hosts"));
    }
    if (shape.accelerators > 0) host.slots = shape.accelerators;
    workers += host.slots;
    topologies.push_back(absl::StrJoin(DdlLabels(shape, i), "/"));
  }
  COORDD_RETURN_IF_ERROR(CheckDdlCount(options, shape, workers));
  return topologies;
}

absl::StatusOr<int32_t> ShapeNodes(const RunOptions& options, int32_t nodes) {
  COORDD_ASSIGN_OR_RETURN(const DdlShape asked, DdlShapeOf(options));
  COORDD_ASSIGN_OR_RETURN(const DdlShape shape, FillDdlShape(asked, static_cast<size_t>(nodes)));
  if (shape.accelerators == 0) return NoAccelerators();
  COORDD_RETURN_IF_ERROR(CheckDdlCount(options, shape, int64_t{shape.accelerators} * nodes));
  return shape.accelerators;
}

}  // namespace coordd
