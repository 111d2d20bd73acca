// Lists of hosts as schedulers and people write them. The grammars are in docs/LAUNCHING.md. PURE
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace coordd {

// The bounds of an expansion: a[0-999999999]b[0-9] is an error, not the end of the memory.
constexpr size_t kMaxHosts = size_t{1} << 20;
constexpr size_t kMaxHostListBytes = size_t{64} << 20;  // of all names together
constexpr size_t kMaxHostNameBytes = 253;               // DNS

// A host and for how many workers it has room.
struct HostSlots {
  std::string host;
  int32_t slots = 0;      // 0: not said
  int32_t max_slots = 0;  // 0: not said
  std::string user = "";  // for ssh; empty: not said
  friend bool operator==(const HostSlots&, const HostSlots&) = default;
};

// All functions here return INVALID_ARGUMENT with one sentence that points at the column (and
// line).

// Slurm's, Flux's, pdsh's and Intel's bracket notation, separated by commas or white space:
// "nid[001140-001141,003],a[1-2]b[3-4]", in the order in which scontrol show hostnames prints it.
// Repeated hosts stay repeated.
absl::StatusOr<std::vector<std::string>> ExpandHostList(absl::string_view text);

// The reverse, for people: neighbours with a common prefix and ascending numbers of one width
// become a range. ExpandHostList gives the same hosts in the same order.
std::string CompressHostList(absl::Span<const std::string> hosts);

// Reads SLURM_TASKS_PER_NODE: "4(x2),3" is 4, 4, 3.
absl::StatusOr<std::vector<int32_t>> ExpandTasksPerNode(absl::string_view text);

// horovodrun -H, mpirun -H: "node1:4,node2:4"; without ":n" slots are not said; "[::1]:4". The host
// may be in bracket notation: "n[1-4]:8". Repeated hosts add up, where each counts 1 unless it says
// more.
absl::StatusOr<std::vector<HostSlots>> ParseHostsOption(absl::string_view text);

// Reads LSB_MCPU_HOSTS: "grid03 1 grid05 4".
absl::StatusOr<std::vector<HostSlots>> ParseHostCounts(absl::string_view text);

// LSB_HOSTS, and the first words of a file with a host for each slot or rank: PBS_NODEFILE,
// LSB_DJOB_HOSTFILE, LSB_DJOB_RANKFILE, LSB_AFFINITY_HOSTFILE. Each mention is a slot.
absl::StatusOr<std::vector<HostSlots>> ParseHostWords(absl::string_view text);
absl::StatusOr<std::vector<HostSlots>> ParseHostPerSlotFile(absl::string_view text);

// A hosts file of horovodrun and DeepSpeed ("host slots=4"), Open MPI ("user@host slots=4
// max_slots=8"), Hydra ("host:4"), bsub -hostfile ("host 4"), PE_HOSTFILE ("host 4 queue
// processors"), or a host a line, once for each slot. Comments begin with '#'. Mixed lines are
// fine; repeated hosts add up.
absl::StatusOr<std::vector<HostSlots>> ParseHostFile(absl::string_view text);

// Reads "8x4x2": GPUs, nodes, racks, aisles; 1 to 8 factors of at least 1.
absl::StatusOr<std::vector<int32_t>> ParseTopologyShape(absl::string_view text);

// The name in lower case, without its domain; addresses stay as they are.
std::string ShortHostName(absl::string_view host);
// Whether two names are of one machine: "node1", "node1.cluster" and "node1-ib0" (a name of one of
// its interfaces) are.
bool SameHost(absl::string_view a, absl::string_view b);

}  // namespace coordd
