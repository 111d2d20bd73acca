#include "worker/gpu/plane/device_use.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/machine/gpu_sharing.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

std::string WithinNode(NodeLinks links) {
  switch (links) {
    case NodeLinks::kNone:
      return "";
    case NodeLinks::kNvLink:
      return "NVLink";
    case NodeLinks::kSomeNvLink:
      return "NVLink between some GPUs, PCIe or shared memory between others";
    case NodeLinks::kNoNvLink:
      return "no NVLink: PCIe or shared memory";
    case NodeLinks::kUnknown:
      return "unknown: not every process sees the GPUs of the others";
  }
  return "";
}

std::string BetweenNodes(const DeviceDecision& decision, const std::string& net_plugin) {
  if (!decision.several_machines) return "";
  if (!net_plugin.empty()) return absl::StrCat("plugin ", net_plugin);
  if (!decision.rdma) return "TCP sockets";
  return decision.gpu_direct ? "RDMA, GPUDirect" : "RDMA, without GPUDirect";
}

// What loaders and hosts say, as text that coordd takes.
std::string Tellable(std::string text, int64_t bytes) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return absl::ascii_iscntrl(c); }, ' ');
  return ShortenedText(text, static_cast<size_t>(bytes));
}

void DescribePath(const absl::StatusOr<DeviceDecision>& decision, const std::string& net_plugin,
                  v1::TensorPath& path) {
  if (!decision.ok()) {
    path.set_refused(true);
    path.set_why_not(Tellable(std::string(decision.status().message()), kMaxReasonBytes));
    return;
  }
  path.set_nccl(decision->nccl);
  path.set_why_not(Tellable(decision->why_not, kMaxReasonBytes));
  if (!decision->nccl) return;
  path.set_within_node(WithinNode(decision->links));
  path.set_between_nodes(Tellable(BetweenNodes(*decision, net_plugin), kMaxTransportBytes));
  path.set_hierarchical(decision->ranks_per_node > 0);
  path.set_why_flat(Tellable(decision->why_flat, kMaxReasonBytes));
}

}  // namespace

v1::DeviceUse DescribeDeviceUse(const DeviceFacts& facts) {
  v1::DeviceUse use;
  if (facts.device.has_value()) {
    v1::Device& device = *use.mutable_device();
    device.set_kind(v1::MEMORY_KIND_CUDA);
    device.set_index(facts.device->index);
    device.set_uuid(Tellable(facts.device->uuid, kMaxDeviceFieldBytes));
    device.set_model(Tellable(facts.device->model, kMaxDeviceFieldBytes));
    use.set_sharing(Tellable(GpuSharing(facts.device->model, facts.mps), kMaxTransportBytes));
  }
  use.set_nccl(Tellable(facts.nccl, kMaxVersionBytes));
  use.set_no_nccl(Tellable(facts.no_nccl, kMaxReasonBytes));
  for (const auto& [process_set, decision] : facts.decisions) {
    if (use.paths_size() >= kMaxTensorPaths) {
      use.set_more_paths(use.more_paths() + 1);
      continue;
    }
    v1::TensorPath& path = *use.add_paths();
    path.set_process_set(ToInt(process_set));
    DescribePath(decision, facts.net_plugin, path);
  }
  return use;
}

}  // namespace coordd
