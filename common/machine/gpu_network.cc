#include "common/machine/gpu_network.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/dynamic_library.h"

namespace coordd {
namespace {

namespace fs = std::filesystem;

std::string Value(const Environment& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

// A distance that nothing is within: "LOC", or 0 as older versions count.
bool IsNoDistance(const std::string& level) { return level == "LOC" || level == "0"; }

std::string FirstLine(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<std::string> ActiveRdmaPorts(const std::string& sys) {
  std::vector<std::string> ports;
  std::error_code error;
  for (const auto& device : fs::directory_iterator(fs::path(sys) / "class/infiniband", error)) {
    std::error_code none;
    for (const auto& port : fs::directory_iterator(device.path() / "ports", none)) {
      if (!absl::StartsWith(FirstLine(port.path() / "state"), "4")) continue;  // "4: ACTIVE"
      const std::string link = FirstLine(port.path() / "link_layer");
      ports.push_back(absl::StrCat(device.path().filename().string(), " port ",
                                   port.path().filename().string(),
                                   link.empty() ? "" : absl::StrCat(" (", link, ")")));
    }
  }
  std::sort(ports.begin(), ports.end());
  return ports;
}

GpuNetwork LookForGpuNetwork(const Environment& environment, const std::string& sys) {
  GpuNetwork network;
  const bool allowed =
      Value(environment, "NCCL_IB_DISABLE") != "1" && Value(environment, "NCCL_NET") != "Socket";
  const bool has_port = !ActiveRdmaPorts(sys).empty();
  network.rdma = allowed && has_port;
  const std::string plugin = Value(environment, "NCCL_NET_PLUGIN");
  network.unused_rdma = !allowed && has_port && (plugin.empty() || plugin == "none");
  for (const char* module : {"module/nvidia_peermem", "kernel/mm/memory_peers/nv_mem",
                             "kernel/mm/memory_peers/nv_mem_nc"}) {
    std::error_code error;
    network.peer_memory = network.peer_memory || fs::exists(fs::path(sys) / module, error);
  }
  network.dma_buf = Value(environment, "NCCL_DMABUF_ENABLE") != "0";
  network.gpu_direct = !IsNoDistance(Value(environment, "NCCL_NET_GDR_LEVEL"));
  network.peer_to_peer = Value(environment, "NCCL_P2P_DISABLE") != "1" &&
                         !IsNoDistance(Value(environment, "NCCL_P2P_LEVEL"));
  return network;
}

std::vector<std::string> NetPluginNames(const Environment& environment) {
  const std::string named = Value(environment, "NCCL_NET_PLUGIN");
  if (named == "none" || Value(environment, "NCCL_NET") == "Socket") return {};
  if (named.empty()) return {"libnccl-net.so"};
  return {named, absl::StrCat("libnccl-net-", named, ".so")};
}

std::string LoadedNetPlugin(const Environment& environment) {
  for (const std::string& name : NetPluginNames(environment))
    if (DynamicLibrary::OpenLoaded(name).ok()) return name;
  return "";
}

}  // namespace coordd
