#include "worker/nccl/rdma_ports.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace coordd {
namespace {

bool Says(const Environment& environment, const char* name, const char* value) {
  const auto found = environment.find(name);
  return found != environment.end() && found->second == value;
}

}  // namespace

bool HasActiveRdmaPort(const Environment& environment, const std::string& sysfs) {
  if (Says(environment, "NCCL_IB_DISABLE", "1") || Says(environment, "NCCL_NET", "Socket"))
    return false;
  std::error_code error;
  for (const auto& device : std::filesystem::directory_iterator(sysfs, error)) {
    for (const auto& port : std::filesystem::directory_iterator(device.path() / "ports", error)) {
      // "4: ACTIVE"
      std::ifstream file(port.path() / "state");
      char state = 0;
      if (file.get(state) && state == '4') return true;
    }
  }
  return false;
}

}  // namespace coordd
