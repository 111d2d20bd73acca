#include "common/launch/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/stable_hash.h"

namespace coordd {
namespace {

// Differs after each boot of a machine; the same in all of its containers.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// A namespace is named by the inode behind its link, unique while the machine runs. 0: the kernel
// has none of this kind, so all processes share it.
uint64_t NamespaceInode(const char* link) {
  struct stat status = {};
  return stat(link, &status) == 0 ? static_cast<uint64_t>(status.st_ino) : 0;
}

std::string UserMap() {
  std::ifstream file("/proc/self/uid_map");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string Hostname() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  const std::string full(name.data());
  return full.substr(0, full.find('.'));
}

}  // namespace

uint64_t OuterUser(absl::string_view uid_map, uint64_t user) {
  for (const absl::string_view line : absl::StrSplit(uid_map, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> columns =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    uint64_t inside = 0, outside = 0, count = 0;
    const bool is_range = columns.size() == 3 && absl::SimpleAtoi(columns[0], &inside) &&
                          absl::SimpleAtoi(columns[1], &outside) &&
                          absl::SimpleAtoi(columns[2], &count);
    if (is_range && user >= inside && user - inside < count) return outside + (user - inside);
  }
  return user;
}

HostIdentity ThisHost(const std::string& node_id_override) {
  HostIdentity identity;
  identity.hostname = Hostname();
  if (!node_id_override.empty()) {
    identity.node_id = node_id_override;
    return identity;
  }
  const std::string memory_domain =
      absl::StrCat(BootId(), "/", NamespaceInode("/proc/self/ns/net"), "/",
                   NamespaceInode("/proc/self/ns/ipc"), "/", OuterUser(UserMap(), geteuid()));
  identity.node_id =
      absl::StrCat(identity.hostname, "-", absl::Hex(StableHash(memory_domain), absl::kZeroPad16));
  return identity;
}

}  // namespace coordd
