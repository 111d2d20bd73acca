#include "worker/host/host_choice.h"

#include "worker/host/leader_run.h"
#include "worker/interfaces/collective_args.h"

namespace coordd {
namespace {

// Of the whole vector, which all ranks know.
int64_t WholeBytes(const CollectiveArgs& args) {
  return SizeOf(args.kind == CollectiveKind::kAllgather ? args.output : NodeInputOf(args));
}

}  // namespace

Algorithm FlatAlgorithm(const CollectiveArgs& args, const HostGroup& group) {
  return ChooseAlgorithm(args.kind, WholeBytes(args), group.layout.size());
}

bool HasOthers(CollectiveKind kind, const HostGroup& group) {
  if (!AreApart(group.places)) return group.places != Places::kAny;
  if (kind == CollectiveKind::kBroadcast) return group.layout.num_nodes() > 2;
  return kind == CollectiveKind::kAllreduce || (HasDimensions(kind) && AreInGrid(group.places));
}

Algorithm AgreedChoice(const CollectiveArgs& args, const HostGroup& group, HostAlgorithm agreed,
                       int64_t inline_bytes_max) {
  const Algorithm flat = FlatAlgorithm(args, group);
  if (agreed == HostAlgorithm::kFlat) return flat;
  const bool apart = AreApart(group.places);
  const bool small = !apart && LeaderRun::Fits(args, inline_bytes_max);
  if (agreed == HostAlgorithm::kHierarchical && small) return Algorithm::kLeaders;
  const bool has_hierarchy = !apart && HasHierarchy(args.kind, group.places == Places::kEvenNodes);
  if (agreed == HostAlgorithm::kHierarchical && has_hierarchy) return Algorithm::kHierarchical;
  const Algorithm chosen =
      ChooseAlgorithm(args.kind, WholeBytes(args), group.layout.size(), group.places);
  return chosen == Algorithm::kLeaders && !small ? flat : chosen;
}

absl::string_view NameOf(Algorithm algorithm, CollectiveKind kind, const HostGroup& group) {
  return HasDimensions(kind) && !group.grid.empty() ? NameInGrid(algorithm) : Name(algorithm);
}

}  // namespace coordd
