#include "client/coordrun/wire/host_look.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/owned_fd.h"
#include "common/machine/build_info.h"
#include "common/net/address.h"

namespace coordd {
namespace {

constexpr size_t kMaxModels = 64;  // the protocol's bound of devices per worker

struct Attempt {
  std::string address;
  OwnedFd socket;
  int error = EINPROGRESS;  // 0: connected
};

// Begins to connect.
Attempt Begin(const std::string& address) {
  Attempt attempt{address, {}, EINVAL};
  const auto parsed = ParseHostPort(address);
  if (!parsed.ok()) return attempt;
  sockaddr_storage storage{};
  socklen_t size = 0;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (inet_pton(AF_INET, parsed->host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(parsed->port);
    size = sizeof(*v4);
  } else if (inet_pton(AF_INET6, parsed->host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(parsed->port);
    size = sizeof(*v6);
  } else {
    return attempt;
  }
  attempt.socket =
      OwnedFd(socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  const int failed =
      connect(attempt.socket.get(), reinterpret_cast<const sockaddr*>(&storage), size);
  attempt.error = failed == 0 ? 0 : errno;
  return attempt;
}

// The first one that has connected, when none before it can any more.
const Attempt* Decided(const std::vector<Attempt>& attempts) {
  for (const Attempt& attempt : attempts) {
    if (attempt.error == 0) return &attempt;
    if (attempt.error == EINPROGRESS) return nullptr;
  }
  return nullptr;
}

bool Pending(const std::vector<Attempt>& attempts) {
  return std::any_of(attempts.begin(), attempts.end(),
                     [](const Attempt& attempt) { return attempt.error == EINPROGRESS; });
}

// Models of the GPUs in this machine, as the driver tells them without being loaded.
std::vector<std::string> GpuModels() {
  std::vector<std::string> models;
  std::error_code error;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  for (const std::filesystem::path& path : found) {
    std::ifstream information(path / "information");
    for (std::string line; std::getline(information, line);) {
      absl::string_view text = line;
      if (!absl::ConsumePrefix(&text, "Model:") || models.size() == kMaxModels) continue;
      models.emplace_back(absl::StripAsciiWhitespace(text));
    }
  }
  return models;
}

}  // namespace

void LookAtCores(AgentReport* report) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return;
  std::string cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    int last = cpu;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) ++last;
    absl::StrAppend(&cpus, cpus.empty() ? "" : ",", cpu);
    if (last > cpu) absl::StrAppend(&cpus, "-", last);
    cpu = last;
  }
  report->set_cores(CPU_COUNT(&set));
  report->set_cpus(cpus);
}

void LookAtSharedMemory(AgentReport* report) {
  struct statvfs found {};
  if (statvfs("/dev/shm", &found) != 0) return;
  report->set_shared_memory_bytes(static_cast<int64_t>(found.f_blocks) *
                                  static_cast<int64_t>(found.f_frsize));
}

absl::StatusOr<std::string> FirstReachable(const std::vector<std::string>& addresses,
                                           absl::Duration timeout) {
  std::vector<Attempt> attempts;
  for (const std::string& address : addresses) attempts.push_back(Begin(address));
  // poll counts the time: no clock is needed for a bound in steps.
  constexpr absl::Duration kStep = absl::Milliseconds(50);
  for (absl::Duration waited; waited < timeout && Pending(attempts); waited += kStep) {
    if (const Attempt* best = Decided(attempts)) return best->address;
    std::vector<pollfd> fds;
    for (const Attempt& attempt : attempts) {
      const bool pending = attempt.error == EINPROGRESS;
      fds.push_back({.fd = pending ? attempt.socket.get() : -1, .events = POLLOUT, .revents = 0});
    }
    poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(kStep)));
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      socklen_t size = sizeof(attempts[i].error);
      getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &attempts[i].error, &size);
    }
  }
  std::string tried;
  for (const Attempt& attempt : attempts) {
    if (attempt.error == 0) return attempt.address;
    absl::StrAppend(&tried, tried.empty() ? "" : "; ", attempt.address, ": ",
                    attempt.error == EINPROGRESS ? "no answer" : std::strerror(attempt.error));
  }
  return absl::UnavailableError(tried.empty() ? "there is no address to try" : tried);
}

int32_t VisibleGpus(const Environment& environment, size_t in_machine) {
  const auto found = environment.find("CUDA_VISIBLE_DEVICES");
  if (found == environment.end()) return static_cast<int32_t>(in_machine);
  int32_t count = 0;
  // CUDA takes the entries up to the first one that is none.
  for (absl::string_view entry : absl::StrSplit(found->second, ',', absl::SkipWhitespace())) {
    if (absl::StripAsciiWhitespace(entry)[0] == '-') break;
    ++count;
  }
  return count;
}

void LookAtHost(const Environment& environment, AgentReport* report) {
  LookAtCores(report);
  LookAtSharedMemory(report);
  const std::vector<std::string> models = GpuModels();
  report->mutable_gpus()->Assign(models.begin(), models.end());
  report->set_visible_gpus(VisibleGpus(environment, models.size()));
  for (const Component& component : BuildComponents(environment)) {
    const std::string& version = component.loaded.empty() ? component.built : component.loaded;
    if (component.name == "NCCL" && component.available) report->set_nccl(version);
    if (component.name == "UCX" && component.available) report->set_ucx(version);
  }
}

}  // namespace coordd
