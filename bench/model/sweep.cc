#include "bench/model/sweep.h"

#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "bench/model/collective.h"
#include "common/base/status_macros.h"

namespace coordd::model {
namespace {

constexpr std::array<std::pair<const char*, CollectiveKind>, 5> kKinds = {{
    {"allreduce", CollectiveKind::kAllreduce},
    {"allgather", CollectiveKind::kAllgather},
    {"reduce_scatter", CollectiveKind::kReducescatter},
    {"broadcast", CollectiveKind::kBroadcast},
    {"alltoall", CollectiveKind::kAlltoall},
}};

const char* NameOf(CollectiveKind kind) {
  for (const auto& [name, known] : kKinds)
    if (known == kind) return name;
  return "";
}

}  // namespace

absl::StatusOr<std::vector<CollectiveKind>> KindsFrom(const std::vector<std::string>& words) {
  std::vector<CollectiveKind> kinds;
  for (const std::string& word : words) {
    const size_t before = kinds.size();
    for (const auto& [name, kind] : kKinds)
      if (word == name) kinds.push_back(kind);
    if (kinds.size() == before) {
      return absl::InvalidArgumentError(
          absl::StrCat("--ops ", word,
                       ", expected some of allreduce,allgather,reduce_scatter,broadcast,alltoall"));
    }
  }
  return kinds;
}

absl::StatusOr<nlohmann::json> Cell(const Sweep& sweep, CollectiveKind kind, int32_t nodes,
                                    int64_t bytes) {
  Network network = sweep.network;
  const bool in_racks = sweep.rack_nodes > 0 && nodes > sweep.rack_nodes;
  network.racks = in_racks ? nodes / sweep.rack_nodes : 1;
  const Collective collective{kind, EvenBytes(bytes, nodes), nodes, sweep.labelled};
  nlohmann::json cell = {
      {"op", NameOf(kind)}, {"nodes", nodes}, {"racks", network.racks}, {"bytes", bytes}};
  double best_us = 0;
  for (const Way& way : WaysOf(collective, network)) {
    COORDD_ASSIGN_OR_RETURN(const double us, Microseconds(way, collective, network));
    cell["us"][way.name] = us;
    if (best_us > 0 && us >= best_us) continue;
    best_us = us;
    cell["best"] = way.name;
  }
  const Way choice = ChoiceOf(collective, network);
  COORDD_ASSIGN_OR_RETURN(const double us, Microseconds(choice, collective, network));
  cell["chosen"] = choice.name;
  cell["chosen_us"] = us;
  cell["slower"] = us / best_us;
  return cell;
}

}  // namespace coordd::model
