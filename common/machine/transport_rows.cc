#include "common/machine/transport_rows.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/dynamic_library.h"
#include "common/base/status_macros.h"
#include "common/machine/gpu_network.h"
#include "common/machine/gpu_sharing.h"

namespace coordd {
namespace {

constexpr int kP2pNativeAtomics = 3;   // CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
constexpr int kDmaBufSupported = 124;  // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED

// The few functions of the driver that are asked, and how many devices it sees.
struct Driver {
  int (*device_get)(int*, int) = nullptr;
  int (*attribute)(int*, int, int) = nullptr;
  int (*peer_attribute)(int*, int, int, int) = nullptr;
  int (*name)(char*, int, int) = nullptr;  // nullptr: no slice is found
  int devices = 0;
};

absl::StatusOr<Driver> OpenDriver(const std::string& name) {
  auto library = DynamicLibrary::Open(name);
  if (!library.ok()) return library.status();
  auto* const init = library->Function<int(unsigned)>("cuInit");
  auto* const count = library->Function<int(int*)>("cuDeviceGetCount");
  Driver driver;
  driver.device_get = library->Function<int(int*, int)>("cuDeviceGet");
  driver.attribute = library->Function<int(int*, int, int)>("cuDeviceGetAttribute");
  driver.name = library->Function<int(char*, int, int)>("cuDeviceGetName");
  driver.peer_attribute = library->Function<int(int*, int, int, int)>("cuDeviceGetP2PAttribute");
  const bool whole = init != nullptr && count != nullptr && driver.device_get != nullptr &&
                     driver.attribute != nullptr && driver.peer_attribute != nullptr;
  if (!whole) return absl::NotFoundError(absl::StrCat(name, " lacks functions"));
  if (init(0) != 0 || count(&driver.devices) != 0 || driver.devices == 0)
    return absl::UnavailableError("the driver sees no device");
  return driver;
}

absl::StatusOr<std::string> NvLink(const absl::StatusOr<Driver>& driver) {
  if (!driver.ok()) return driver.status();
  int pairs = 0, linked = 0;
  for (int a = 0; a < driver->devices; ++a) {
    for (int b = 0; b < driver->devices; ++b) {
      int from = 0, to = 0, atomics = 0;
      if (a == b || driver->device_get(&from, a) != 0 || driver->device_get(&to, b) != 0) continue;
      ++pairs;
      if (driver->peer_attribute(&atomics, kP2pNativeAtomics, from, to) == 0 && atomics == 1)
        ++linked;
    }
  }
  if (pairs == 0) return absl::UnavailableError("one GPU is visible");
  if (linked == 0)
    return absl::UnavailableError(absl::StrCat("none between the ", driver->devices, " GPUs"));
  if (linked == pairs) return absl::StrCat("between all ", driver->devices, " GPUs");
  return absl::StrCat("between ", linked / 2, " of ", pairs / 2, " pairs of GPUs");
}

absl::StatusOr<std::string> Rdma(const GpuNetwork& network, const std::string& sys) {
  const std::vector<std::string> ports = ActiveRdmaPorts(sys);
  if (ports.empty()) return absl::UnavailableError("no active port");
  if (!network.rdma)
    return absl::UnavailableError("switched off for NCCL (NCCL_IB_DISABLE or NCCL_NET)");
  return absl::StrJoin(ports, ", ");
}

absl::StatusOr<std::string> GpuDirect(const GpuNetwork& network,
                                      const absl::StatusOr<Driver>& driver) {
  if (!network.rdma) return absl::UnavailableError("no RDMA");
  if (!network.gpu_direct)
    return absl::UnavailableError("switched off for NCCL (NCCL_NET_GDR_LEVEL)");
  if (network.peer_memory) return std::string("nvidia_peermem");
  int device = 0, supported = 0;
  const bool dma_buf = network.dma_buf && driver.ok() && driver->device_get(&device, 0) == 0 &&
                       driver->attribute(&supported, kDmaBufSupported, device) == 0 &&
                       supported == 1;
  if (dma_buf) return std::string("DMA-BUF");
  return absl::UnavailableError("neither the module nvidia_peermem nor DMA-BUF");
}

absl::StatusOr<std::string> Sharing(const Environment& environment,
                                    const absl::StatusOr<Driver>& driver) {
  std::string model;
  int device = 0;
  char name[256] = "";
  if (driver.ok() && driver->name != nullptr && driver->device_get(&device, 0) == 0 &&
      driver->name(name, sizeof(name), device) == 0) {
    model = name;
  }
  std::string sharing = GpuSharing(model, LookForMps(environment));
  if (sharing.empty()) return absl::UnavailableError("neither MPS nor a MIG slice is in use");
  return sharing;
}

absl::StatusOr<std::string> Plugin(const Environment& environment) {
  absl::Status why = absl::UnavailableError("switched off (NCCL_NET_PLUGIN or NCCL_NET)");
  for (const std::string& name : NetPluginNames(environment)) {
    const auto opened = DynamicLibrary::Open(name);
    if (opened.ok()) return name;
    why = opened.status();
  }
  return why;
}

absl::Status CheckOneOf(const Environment& environment, const std::string& variable,
                        std::initializer_list<absl::string_view> values) {
  const auto set = environment.find(variable);
  const bool is_one = set == environment.end() || set->second.empty() ||
                      std::find(values.begin(), values.end(), set->second) != values.end();
  if (is_one) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      variable, " is \"", set->second, "\", expected one of ", absl::StrJoin(values, ", ")));
}

// As worker/runtime/transport_factory chooses, by the same variables.
absl::StatusOr<std::string> BetweenNodes(const Environment& environment, const std::string& sys) {
  const auto is = [&](const char* variable, absl::string_view value) {
    const auto set = environment.find(variable);
    return set != environment.end() && set->second == value;
  };
  COORDD_RETURN_IF_ERROR(
      CheckOneOf(environment, "COORDD_TRANSPORT", {"auto", "mapped", "shm", "tcp", "ucx"}));
  COORDD_RETURN_IF_ERROR(CheckOneOf(environment, "COORDD_DATA_ENCRYPTION", {"on", "off"}));
  const bool encrypts = is("COORDD_DATA_ENCRYPTION", "on");
  if (is("COORDD_TRANSPORT", "shm")) return "none: COORDD_TRANSPORT=shm";
  if (is("COORDD_TRANSPORT", "ucx"))
    return "UCX, in plain, which over TCP believes whoever reaches its ports";
  const bool has_rdma = !ActiveRdmaPorts(sys).empty() && !is("COORDD_TRANSPORT", "tcp");
  if (has_rdma && !encrypts)
    return "RDMA by UCX where both ranks have it, else coordd's TCP, in plain";
  return absl::StrCat("coordd's TCP, ", encrypts ? "encrypted" : "in plain");
}

Component Row(std::string name, absl::StatusOr<std::string> found) {
  Component row;
  row.name = std::move(name);
  row.available = found.ok();
  if (found.ok()) {
    row.loaded = *std::move(found);
  } else {
    row.why_not = std::string(found.status().message());
  }
  return row;
}

}  // namespace

std::vector<Component> TransportComponents(const Environment& environment, const std::string& sys,
                                           const std::string& driver) {
  const GpuNetwork network = LookForGpuNetwork(environment, sys);
  const absl::StatusOr<Driver> opened = OpenDriver(driver);
  std::vector<Component> rows;
  rows.push_back(Row("between nodes", BetweenNodes(environment, sys)));
  rows.push_back(Row("NVLink", NvLink(opened)));
  rows.push_back(Row("RDMA", Rdma(network, sys)));
  rows.push_back(Row("GPUDirect RDMA", GpuDirect(network, opened)));
  rows.push_back(Row("NCCL network plugin", Plugin(environment)));
  rows.push_back(Row("a part of a GPU", Sharing(environment, opened)));
  return rows;
}

}  // namespace coordd
