#include "client/coordrun/plan/torch_variables.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace coordd {
namespace {

constexpr const char* kTorchNames[] = {
    "RANK",       "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"};

bool GivenByUser(const RunOptions& options, const std::string& name) {
  return std::any_of(options.variables.begin(), options.variables.end(),
                     [&name](const auto& variable) { return variable.first == name; });
}

}  // namespace

std::vector<std::string> TorchNames(const RunOptions& options) {
  std::vector<std::string> names;
  if (!options.torch_env) return names;
  for (const char* name : kTorchNames)
    if (!GivenByUser(options, name)) names.emplace_back(name);
  return names;
}

Environment TorchVariables(const std::vector<std::string>& names, const TorchPlace& place,
                           const TorchMaster& master) {
  Environment all = {{"RANK", absl::StrCat(place.rank)},
                     {"WORLD_SIZE", absl::StrCat(place.size)},
                     {"LOCAL_RANK", absl::StrCat(place.local_rank)},
                     {"LOCAL_WORLD_SIZE", absl::StrCat(place.local_size)},
                     {"GROUP_RANK", absl::StrCat(place.group_rank)}};
  if (!master.address.empty() && master.port != 0) {
    all["MASTER_ADDR"] = master.address;
    all["MASTER_PORT"] = absl::StrCat(master.port);
  }
  Environment chosen;
  std::vector<std::string> set;
  for (const std::string& name : names) {
    const auto found = all.find(name);
    if (found == all.end()) continue;
    chosen.insert(*found);
    set.push_back(name);
  }
  if (!set.empty()) chosen[kTorchMarker] = absl::StrJoin(set, ",");
  return chosen;
}

Environment MasterVariables(const std::vector<std::string>& names, const TorchMaster& master) {
  const Environment all = TorchVariables(names, {}, master);
  Environment chosen;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"})
    if (const auto found = all.find(name); found != all.end()) chosen.insert(*found);
  return chosen;
}

std::string TorchOverrides(const RunOptions& options) {
  std::vector<std::string> given;
  if (!options.torch_env) return "";
  for (const char* name : kTorchNames)
    if (GivenByUser(options, name)) given.emplace_back(name);
  if (given.empty()) return "";
  return absl::StrCat("-x ", absl::StrJoin(given, ", "), given.size() == 1 ? " wins" : " win",
                      " over what coordrun would set for torch.distributed");
}

}  // namespace coordd
