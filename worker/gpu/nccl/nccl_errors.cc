#include "worker/gpu/nccl/nccl_errors.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

struct Hint {
  absl::string_view words;  // in NCCL's text, whatever their case
  absl::string_view text;
};

// The first that fits counts: what is particular stands before what is general.
constexpr Hint kHints[] = {
    {"duplicate gpu",
     "two ranks use one GPU, or MIG slices of one, which NCCL before 2.30 does not take, under MPS "
     "either: give each a GPU of its own (CUDA_VISIBLE_DEVICES or the local rank)"},
    // The same of 2.30, which tells slices apart, and can have two ranks on one.
    {"using the same gpu",
     "two ranks use one GPU or one MIG slice: give each its own (CUDA_VISIBLE_DEVICES or the local "
     "rank), or let them share it by NCCL_MULTI_RANK_GPU_ENABLE=1, best under MPS"},
    {"no space left",
     "/dev/shm is full or small: in a container, give it more (--shm-size) or NCCL_SHM_DISABLE=1"},
    {"shm", "NCCL's shared memory: look at the size of /dev/shm, or set NCCL_SHM_DISABLE=1"},
    {"driver version is insufficient",
     "the driver is older than this NCCL: update it, or use an NCCL built for its CUDA version"},
    {"out of memory",
     "the GPU's memory is full: NCCL's own buffers need some hundred MiB besides the program's"},
    {"no socket interface",
     "no network interface fits: set NCCL_SOCKET_IFNAME to the one that reaches the other hosts"},
    {"connection refused",
     "a host is not reached on the interface that NCCL chose: set NCCL_SOCKET_IFNAME, and let the "
     "firewall pass its ports"},
    {"timed out",
     "a host is not reached on the interface that NCCL chose: set NCCL_SOCKET_IFNAME, and let the "
     "firewall pass its ports"},
    {"ibv_", "InfiniBand: look at ibv_devinfo and the limit of locked memory (ulimit -l)"},
    {"closed by", "a peer is gone: its own log says why"},
    {"remote", "a peer is gone, or the way to it: its own log says why"},
    {"unhandled cuda error", "the CUDA error is in NCCL's log with NCCL_DEBUG=WARN"},
    {"unhandled system error", "the system's error is in NCCL's log with NCCL_DEBUG=WARN"},
    {"internal error", "NCCL's log says more with NCCL_DEBUG=WARN"},
};

}  // namespace

absl::string_view NcclHint(absl::string_view error, absl::string_view detail) {
  for (absl::string_view text : {detail, error}) {
    const std::string lower = absl::AsciiStrToLower(text);
    for (const Hint& hint : kHints)
      if (absl::StrContains(lower, hint.words)) return hint.text;
  }
  return "";
}

std::string CommunicatorName(const NcclPlace& place) {
  const std::string behind = absl::StrCat("/", ToInt(place.group),
                                          place.node >= 0 ? absl::StrCat("/node", place.node) : "",
                                          place.for_graphs ? "/graphs" : "");
  constexpr absl::string_view kBefore = "coordd/";
  std::string job = place.job.substr(0, kMaxCommunicatorName - kBefore.size() - behind.size());
  for (char& c : job)
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c)) || c == '%') c = '_';
  return absl::StrCat(kBefore, job, behind);
}

std::string NcclErrorText(const NcclFailure& failure, const NcclPlace& place) {
  const absl::string_view hint = NcclHint(failure.error, failure.detail);
  return absl::StrCat(
      failure.call, ": ", failure.error, failure.detail.empty() ? "" : ": ", failure.detail,
      " (rank ", place.rank, " of ", place.size, ", process set ", ToInt(place.group),
      place.node >= 0 ? absl::StrCat(", node ", place.node) : "", ", device ", place.device, " ",
      place.device_uuid, ", NCCL ", place.nccl_version, ", driver ", place.driver_version,
      ", interfaces: ",
      place.interface.empty() ? "NCCL's choice" : absl::string_view(place.interface), ")",
      hint.empty() ? "" : ": ", hint);
}

}  // namespace coordd
