#include "client/coordrun/plan/pod_part.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/environment.h"
#include "common/base/status_macros.h"
#include "common/launch/host_list.h"
#include "common/launch/launcher_detect.h"
#include "common/net/address.h"

namespace coordd {
namespace {

constexpr uint16_t kPort = 29650;

bool SaysHow(const RunOptions& options) {
  return !options.launcher.empty() || !options.coordinator.empty() || options.size != 0 ||
         !options.hosts.empty() || !options.hostfile.empty() || !options.discovery_script.empty();
}

std::string ThisIs(const LaunchPlace& pod) {
  const std::string count = pod.nodes > 0 ? absl::StrCat(" of ", pod.nodes) : "";
  return absl::StrCat("this is pod ", pod.node_rank, count, " of ", pod.title, " (", pod.why, ")");
}

constexpr char kAlone[] = "; --launcher local is a run of this pod alone";

// Ranks are counted out as if each pod had as many workers. Whether the others have, coordd sees.
absl::Status CheckEven(const LaunchPlace& pod, int32_t np, int32_t size) {
  const bool fits = pod.nodes > 0 ? int64_t{pod.nodes} * np == size : size % np == 0;
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      ThisIs(pod), ", with -np ", np, ", and the job has ", size,
      " workers (COORDD_SIZE): expected the same -np in each pod, and COORDD_SIZE to be ",
      pod.nodes > 0 ? absl::StrCat(np, " * ", pod.nodes) : "a multiple of it",
      "; pods with different numbers say --coordinator, --size and --first-rank"));
}

// Workers of the job: as many in each pod, or as COORDD_SIZE says.
absl::StatusOr<int32_t> SizeOf(const LaunchPlace& pod, const RunOptions& options,
                               const Environment& environment) {
  const std::string text = Variable(environment, "COORDD_SIZE");
  int32_t size = 0;
  if (!text.empty() && (!absl::SimpleAtoi(text, &size) || size < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("COORDD_SIZE is ", text, ": expected the number of the job's workers"));
  }
  const int64_t product = int64_t{pod.nodes} * options.np;
  if (size == 0 && pod.nodes > 0 && product <= INT32_MAX) size = static_cast<int32_t>(product);
  if (size == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(ThisIs(pod),
                     ", and how many pods there are is not said: expected COORDD_SIZE, the workers "
                     "of all pods together, in the pod's environment: with PODS of them, ",
                     options.np, " * PODS", kAlone));
  }
  const int64_t first = int64_t{pod.node_rank} * options.np;
  if (first + options.np > size) {
    return absl::InvalidArgumentError(absl::StrCat(
        ThisIs(pod), ", whose workers are ranks ", first, " to ", first + options.np - 1, " (-np ",
        options.np, "), but the job has ", size, text.empty() ? "" : " (COORDD_SIZE)",
        ": expected -np times the number of pods"));
  }
  if (options.min_np == 0) COORDD_RETURN_IF_ERROR(CheckEven(pod, options.np, size));
  return size;
}

absl::StatusOr<HostPort> AddressOf(const LaunchPlace& pod, const Environment& environment) {
  const std::string named = Variable(environment, "COORDD_ADDR");
  if (!named.empty() && named != "auto") {
    absl::StatusOr<HostPort> address = ParseHostPort(named);
    if (address.ok()) return address;
    return absl::InvalidArgumentError(absl::StrCat("COORDD_ADDR: ", address.status().message()));
  }
  if (!pod.coordinator_hints.empty()) return HostPort{pod.coordinator_hints[0].host, kPort};
  return absl::FailedPreconditionError(absl::StrCat(
      ThisIs(pod), ", and nothing says where coordd is: expected COORDD_ADDR=HOST:", kPort,
      " in the pod's environment, of a coordd that runs or of the first pod, by its DNS name, "
      "which "
      "then starts one",
      kAlone));
}

bool IsThisPod(const HostPort& address, const PlanInputs& inputs) {
  const LaunchPlace& pod = *inputs.pod;
  if (pod.node_rank != 0) return false;
  const std::string named = Variable(inputs.environment, "COORDD_ADDR");
  if (named.empty() || named == "auto") return true;  // it is the launcher's first one
  return SameHost(address.host, inputs.hostname);
}

// The first pod's coordd has the certificates of the pods, since there is no other way for them to
// know each other.
absl::Status StartHere(const LaunchPlace& pod, const HostPort& address,
                       const Environment& environment, RunOptions* options) {
  options->listen = HostPort{"0.0.0.0", address.port}.ToString();
  const bool secured = !Variable(environment, "COORDD_TLS_CA").empty() &&
                       !Variable(environment, "COORDD_TLS_CERT").empty() &&
                       !Variable(environment, "COORDD_TLS_KEY").empty();
  if (options->tls && !secured) {
    return absl::FailedPreconditionError(absl::StrCat(
        ThisIs(pod),
        ", where coordd is to be started, and the pods have no certificates: expected "
        "COORDD_TLS_CA, COORDD_TLS_CERT and COORDD_TLS_KEY in each, of a Secret whose certificate "
        "is good for ",
        address.host, ", or --no-tls where nobody else reaches the pods", kAlone));
  }
  if (!options->tls) options->coordd_arguments.emplace_back("--insecure");
  return absl::OkStatus();
}

}  // namespace

absl::Status TakePart(const PlanInputs& inputs, RunOptions* options) {
  if (!inputs.pod.has_value() || SaysHow(*options)) return absl::OkStatus();
  const LaunchPlace& pod = *inputs.pod;
  const Environment& environment = inputs.environment;
  if (pod.node_rank < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(ThisIs(pod), ", whose number is not said", kAlone));
  }
  COORDD_ASSIGN_OR_RETURN(const int32_t size, SizeOf(pod, *options, environment));
  COORDD_ASSIGN_OR_RETURN(const HostPort address, AddressOf(pod, environment));
  options->size = size;
  options->first_rank = pod.node_rank * options->np;
  options->pods.address = address.ToString();
  if (options->metrics.empty()) options->metrics = "auto";
  if (options->min_np > 0) {
    // Which of the job's workers are left is coordd's to know; here one has to be.
    options->pods.min_workers = options->min_np;
    options->min_np = 1;
  }
  if (IsThisPod(address, inputs)) return StartHere(pod, address, environment, options);
  options->coordinator = address.ToString();
  return absl::OkStatus();
}

}  // namespace coordd
