#include "worker/coordinator/auto_coordinator.h"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/atomic_file.h"
#include "common/base/duration_text.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "common/base/random.h"
#include "common/base/status_macros.h"
#include "common/base/token_file.h"
#include "common/grpc/certs.h"
#include "common/launch/auto_coordinator.h"
#include "common/launch/connection_file.h"
#include "common/launch/host_identity.h"
#include "common/launch/host_list.h"
#include "common/launch/launch_facts.h"
#include "common/launch/rendezvous_file.h"
#include "common/net/own_address.h"
#include "worker/coordinator/coordinator_child.h"

namespace coordd {
namespace {

constexpr int kTokenBytes = 32;
// Between two looks at the file: a look is a request to a file server that all ranks ask.
constexpr absl::Duration kFirstLook = absl::Milliseconds(20);
constexpr absl::Duration kLongestLook = absl::Milliseconds(500);
// Then a waiting process says what it waits for.
constexpr absl::Duration kSayAfter = absl::Seconds(10);
constexpr absl::Duration kConnectTimeout = absl::Seconds(2);
// Directories of runs that were killed together with their coordd.
constexpr absl::Duration kStaleAfter = absl::Hours(7 * 24);
// A little more than coordd itself gives its workers.
constexpr absl::Duration kFinishTimeout = absl::Seconds(5);
// An address of a network for documentation: there is nobody, and only the route to it is looked
// up.
constexpr char kAnywhere[] = "192.0.2.1";

// The coordd of this process. A child process belongs to a process whatever its objects do, so this
// is one of the few things that are static.
struct OwnCoordinator {
  Mutex mu;
  pid_t process ABSL_GUARDED_BY(mu) = 0;
  std::unique_ptr<CoordinatorChild> child ABSL_GUARDED_BY(mu);
  CoordinatorAccess access ABSL_GUARDED_BY(mu);
  std::string rendezvous_file ABSL_GUARDED_BY(mu);
};

OwnCoordinator& Own() {
  static auto* const own = new OwnCoordinator;
  return *own;
}

// At the exit of the process that has started it, while the others say goodbye: a scheduler may
// kill what is left of a node's tasks as soon as they have ended.
void FinishOwnCoordinator() {
  OwnCoordinator& own = Own();
  MutexLock lock(&own.mu);
  if (own.child == nullptr || own.process != getpid()) return;
  own.child->Finish(kFinishTimeout, Clock::Real());
  if (!own.rendezvous_file.empty()) unlink(own.rendezvous_file.c_str());
}

std::string Place(const WorkerOptions& options, const std::string& name) {
  const auto found = options.places.find(name);
  return found == options.places.end() ? std::string() : found->second;
}

absl::StatusOr<AutoPlan> PlanOf(const WorkerOptions& options) {
  AutoSettings settings = AutoSettingsFrom(options.places);
  settings.ports = options.ports;
  settings.workers = std::max(options.min_workers, options.max_workers);
  return PlanAutoCoordinator(options.launch, settings);
}

// The addresses of this machine by which the others reach it: by the route to them, not by the name
// of an interface. The likeliest first.
std::vector<std::string> OwnAddresses(const LaunchPlace& launch) {
  std::vector<std::string> towards;
  const std::string hostname = ThisHost("").hostname;
  for (const std::string& host : launch.hosts) {
    if (SameHost(host, hostname)) continue;
    towards.push_back(host);
    break;
  }
  for (const CoordinatorHint& hint : launch.coordinator_hints) towards.push_back(hint.host);
  towards.push_back(kAnywhere);
  std::vector<std::string> addresses, loopback;
  for (const std::string& host : towards) {
    const absl::StatusOr<std::string> local = LocalAddressTowards({host, 9});
    if (!local.ok()) continue;
    std::vector<std::string>& list = IsLoopback(*local) ? loopback : addresses;
    if (std::find(list.begin(), list.end(), *local) == list.end()) list.push_back(*local);
  }
  // Loopback alone: nodes that are simulated on one machine, or a machine without a network.
  return addresses.empty() ? loopback : addresses;
}

absl::StatusOr<std::string> MakeSecrets(const std::string& directory,
                                        const std::vector<std::string>& names) {
  std::error_code error;
  std::filesystem::remove_all(directory, error);  // of an earlier process with the same place
  COORDD_RETURN_IF_ERROR(MakePrivateDirectories(directory));
  CertOptions options;
  options.server_names = names;
  COORDD_RETURN_IF_ERROR(MakeCertificates(directory, options));
  const std::string token = SecretHex(kTokenBytes);
  COORDD_RETURN_IF_ERROR(WriteFileAtomically(directory + "/token", token, 0600));
  return token;
}

// Where the secrets of the coordd that is started go, which removes this directory at its end: that
// of the rendezvous file, since all nodes see it, or one beside a file that the user has chosen.
std::string SecretsDirectory(const WorkerOptions& options, const AutoPlan& plan) {
  if (!Place(options, "COORDD_RENDEZVOUS_FILE").empty()) return plan.rendezvous_file + ".d";
  if (!plan.rendezvous_file.empty())
    return std::filesystem::path(plan.rendezvous_file).parent_path();
  return absl::StrCat(ConnectionDirectory(options.places).value_or("/tmp"), "/run/alone-", getpid(),
                      "-", SecretHex(4));
}

absl::StatusOr<CoordinatorAccess> StartOwnLocked(OwnCoordinator& own, const WorkerOptions& options,
                                                 const AutoPlan& plan, absl::Time deadline,
                                                 Clock& clock)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(own.mu) {
  CoordinatorChildOptions child;
  COORDD_ASSIGN_OR_RETURN(child.program, FindCoordinatorProgram(options.places));
  const std::vector<std::string> hosts =
      plan.one_node ? std::vector<std::string>{LoopbackAddress()} : OwnAddresses(options.launch);
  child.directory = SecretsDirectory(options, plan);
  if (Place(options, "COORDD_RENDEZVOUS_FILE").empty()) {
    PruneRunDirectories(std::filesystem::path(child.directory).parent_path(),
                        clock.Now() - kStaleAfter);
  }
  std::vector<std::string> names = hosts;
  names.push_back(ThisHost("").hostname);
  COORDD_ASSIGN_OR_RETURN(std::string token, MakeSecrets(child.directory, names));
  child.tls = ServerTlsFiles(child.directory);
  const bool v6 = !hosts.empty() && hosts[0].find(':') != std::string::npos;
  child.listen = {plan.one_node ? hosts[0] : v6 ? "::" : "0.0.0.0", 0};
  child.ports = plan.ports;
  COORDD_ASSIGN_OR_RETURN(own.child, CoordinatorChild::Start(child, deadline, clock));
  own.process = getpid();
  own.rendezvous_file = plan.rendezvous_file;
  std::vector<HostPort> addresses;
  for (const std::string& host : hosts) addresses.push_back({host, own.child->listen().port});
  if (addresses.empty())
    return absl::UnavailableError("this machine has no address, not even a loopback one");
  own.access = {addresses[0], WorkerTlsFiles(child.directory), std::move(token)};
  if (plan.rendezvous_file.empty()) return own.access;
  COORDD_RETURN_IF_ERROR(WriteRendezvousFile(
      plan.rendezvous_file,
      {options.launch.instance, std::move(addresses), own.child->http(), child.directory + "/token",
       own.access.tls, static_cast<int>(own.child->pid()), ThisHost("").hostname}));
  return own.access;
}

absl::StatusOr<CoordinatorAccess> StartOrReuse(const WorkerOptions& options, const AutoPlan& plan,
                                               absl::Time deadline, Clock& clock) {
  OwnCoordinator& own = Own();
  MutexLock lock(&own.mu);
  const bool ours = own.child != nullptr && own.process == getpid();
  if (ours && own.rendezvous_file == plan.rendezvous_file && own.child->Alive()) return own.access;
  if (ours) own.child->Finish(kFinishTimeout, clock);
  if (!ours && own.child != nullptr) static_cast<void>(own.child.release());  // the parent's
  own.child.reset();
  COORDD_ASSIGN_OR_RETURN(CoordinatorAccess access,
                          StartOwnLocked(own, options, plan, deadline, clock));
  static const int registered [[maybe_unused]] = std::atexit(FinishOwnCoordinator);
  // A program that runs by itself has nobody to meet: it is spared the line.
  const bool alone = plan.role == AutoPlan::Role::kAlone;
  const std::string line = absl::StrCat(plan.why, "; coordd listens on ", access.address.ToString(),
                                        ", status page http://", own.child->http(), "/");
  if (alone) {
    COORDD_LOG(kDebug, line);
  } else {
    COORDD_LOG(kInfo, line);
  }
  return access;
}

bool CanConnect(const HostPort& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found) != 0)
    return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  const OwnedFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return false;
  if (connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd waiting = {.fd = fd.get(), .events = POLLOUT, .revents = 0};
  if (poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(kConnectTimeout))) != 1)
    return false;
  int error = 0;
  socklen_t size = sizeof(error);
  return getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
}

// What `record` says, once coordd answers at one of its addresses.
absl::StatusOr<CoordinatorAccess> AccessOf(const RendezvousRecord& record) {
  for (const HostPort& address : record.addresses) {
    if (!CanConnect(address)) continue;
    COORDD_ASSIGN_OR_RETURN(std::string token,
                            ReadTokenFile("the rendezvous file", record.token_file));
    return CoordinatorAccess{address, record.tls, std::move(token)};
  }
  const std::string addresses = absl::StrJoin(
      record.addresses, ", ",
      [](std::string* out, const HostPort& address) { out->append(address.ToString()); });
  return absl::UnavailableError(absl::StrCat("coordd on host ", record.host, " (pid ", record.pid,
                                             ") does not answer at ", addresses));
}

absl::StatusOr<CoordinatorAccess> LookAt(const std::string& path, const LaunchPlace& launch) {
  COORDD_ASSIGN_OR_RETURN(const RendezvousRecord record, ReadRendezvousFile(path));
  if (!IsOfThisStart(launch, record.instance))
    return absl::NotFoundError(absl::StrCat(path, " is of another start of a program"));
  return AccessOf(record);
}

absl::StatusOr<CoordinatorAccess> LookOnce(const WorkerOptions& options, const AutoPlan& plan) {
  absl::StatusOr<CoordinatorAccess> access = LookAt(plan.rendezvous_file, options.launch);
  if (!absl::IsNotFound(access.status())) return access;
  std::vector<std::string> directories;
  std::error_code error;
  const auto runs = std::filesystem::path(plan.rendezvous_file).parent_path().parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(runs, error))
    directories.push_back(entry.path().filename());
  for (const std::string& path :
       OtherRendezvousFiles(options.launch, plan.rendezvous_file, directories)) {
    if (absl::StatusOr<CoordinatorAccess> other = LookAt(path, options.launch); other.ok())
      return other;
  }
  return access;
}

absl::StatusOr<CoordinatorAccess> Find(const WorkerOptions& options, const AutoPlan& plan,
                                       absl::Time deadline, Clock& clock) {
  const absl::Time start = clock.Now();
  absl::Duration pause = kFirstLook;
  bool said = false;
  Mutex mu;
  CondVar never;
  while (true) {
    const absl::StatusOr<CoordinatorAccess> access = LookOnce(options, plan);
    if (access.ok() || absl::IsFailedPrecondition(access.status())) return access;
    const absl::Time now = clock.Now();
    if (now >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no coordinator was named, and rank 0 has not started one within ",
          DurationText(now - start), ": ", access.status().message(),
          ". Is this directory shared between the nodes? If not, name a file in one that is with "
          "COORDD_RENDEZVOUS_FILE, or start coordd and set COORDD_ADDR"));
    }
    if (!said && now - start >= kSayAfter) {
      COORDD_LOG(kWarning,
                 "still waiting for the coordd that rank 0 starts: ", access.status().message());
      said = true;
    }
    MutexLock lock(&mu);
    clock.Await(
        &mu, &never, [] { return false; }, std::min(deadline, now + pause));
    pause = std::min(2 * pause, kLongestLook);
  }
}

}  // namespace

absl::StatusOr<CoordinatorAccess> FindOrStartCoordinator(const WorkerOptions& options,
                                                         absl::Time deadline, Clock& clock) {
  COORDD_ASSIGN_OR_RETURN(const AutoPlan plan, PlanOf(options));
  if (plan.role == AutoPlan::Role::kFinds) return Find(options, plan, deadline, clock);
  return StartOrReuse(options, plan, deadline, clock);
}

}  // namespace coordd
