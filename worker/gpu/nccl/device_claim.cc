#include "worker/gpu/nccl/device_claim.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace coordd {
namespace {

// Fields are lines. What comes from a loader's message is the only long one.
constexpr size_t kFields = 17;
constexpr size_t kMaxFieldBytes = 300;
constexpr size_t kMaxNeighbours = 32;
constexpr size_t kMaxUuidBytes = 48;  // "GPU-" and 36 characters
constexpr char kNccl[] = "nccl";
constexpr char kHost[] = "host ";
constexpr char kRefused[] = "refused ";
// The end of a decision for NCCL, since it may have any words.
constexpr char kFlatSince[] = " flat, since ";
constexpr char kRanksPerNode[] = "hierarchical-of-";
constexpr absl::string_view kAlgorithms[] = {"auto", "flat", "hierarchical"};

std::string OneField(absl::string_view text) {
  return absl::StrReplaceAll(text.substr(0, kMaxFieldBytes), {{"\n", " "}});
}

// Each followed by + where NVLink is between, else by -.
std::string EncodeNeighbours(absl::Span<const DeviceClaim::Neighbour> neighbours) {
  std::vector<std::string> words;
  for (const DeviceClaim::Neighbour& n :
       neighbours.first(std::min(neighbours.size(), kMaxNeighbours)))
    words.push_back(absl::StrCat(OneField(n.uuid).substr(0, kMaxUuidBytes), n.nvlink ? "+" : "-"));
  return absl::StrJoin(words, ",");
}

std::vector<DeviceClaim::Neighbour> DecodeNeighbours(absl::string_view text) {
  std::vector<DeviceClaim::Neighbour> neighbours;
  for (absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    neighbours.push_back({std::string(word.substr(0, word.size() - 1)), absl::EndsWith(word, "+")});
  }
  return neighbours;
}

const DeviceClaim::Neighbour* Seen(const DeviceClaim& from, const DeviceClaim& to) {
  for (const DeviceClaim::Neighbour& neighbour : from.neighbours)
    if (neighbour.uuid == to.uuid) return &neighbour;
  return nullptr;
}

NodeLinks LinksBetween(absl::Span<const DeviceClaim> claims) {
  std::map<absl::string_view, std::vector<const DeviceClaim*>> by_machine;
  for (const DeviceClaim& claim : claims) by_machine[claim.machine].push_back(&claim);
  bool any = false, all = true, alone = true;
  for (const auto& [machine, ranks] : by_machine) {
    for (size_t a = 0; a < ranks.size(); ++a) {
      for (size_t b = a + 1; b < ranks.size(); ++b) {
        alone = false;
        const DeviceClaim::Neighbour* seen = Seen(*ranks[a], *ranks[b]);
        if (seen == nullptr) seen = Seen(*ranks[b], *ranks[a]);
        if (seen == nullptr) return NodeLinks::kUnknown;
        any = any || seen->nvlink;
        all = all && seen->nvlink;
      }
    }
  }
  if (alone) return NodeLinks::kNone;
  if (all) return NodeLinks::kNvLink;
  return any ? NodeLinks::kSomeNvLink : NodeLinks::kNoNvLink;
}

// The words of a decision; unlisted: kNone.
constexpr std::pair<absl::string_view, NodeLinks> kLinkWords[] = {
    {"nvlink", NodeLinks::kNvLink},
    {"some-nvlink", NodeLinks::kSomeNvLink},
    {"no-nvlink", NodeLinks::kNoNvLink},
    {"unknown-links", NodeLinks::kUnknown}};
constexpr char kSeveralMachines[] = "several-machines";
constexpr char kRdma[] = "rdma";
constexpr char kGpuDirect[] = "gpu-direct";
constexpr char kFloat8[] = "float8";
constexpr char kWindows[] = "windows";
constexpr char kDirect[] = "direct";
constexpr char kMulticast[] = "multicast";
constexpr char kRegisters[] = "registers";
constexpr char kRdmaForHost[] = "rdma-for-host";
constexpr char kShrinks[] = "shrinks-";  // GENERATION-RANK,RANK

std::string EncodeKept(const std::optional<KeptClaim>& kept) {
  if (!kept.has_value()) return "";
  return absl::StrCat(kept->generation, " ", kept->rank, " ", kept->size, " ", kept->batches);
}

bool DecodeKept(absl::string_view text, std::optional<KeptClaim>* kept) {
  if (text.empty()) return true;
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  KeptClaim& claim = kept->emplace();
  return words.size() == 4 && absl::SimpleAtoi(words[0], &claim.generation) &&
         absl::SimpleAtoi(words[1], &claim.rank) && absl::SimpleAtoi(words[2], &claim.size) &&
         absl::SimpleAtoi(words[3], &claim.batches);
}

// "GENERATION-RANK,RANK", the rest of that word.
bool DecodeShrinks(absl::string_view text, DeviceDecision* decision) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  if (!absl::SimpleAtoi(parts.first, &decision->shrinks_of)) return false;
  for (absl::string_view word : absl::StrSplit(parts.second, ',')) {
    if (!absl::SimpleAtoi(word, &decision->excluded.emplace_back())) return false;
  }
  return true;
}

// Where every rank has the same communicator at rest, in the order of the new ranks, and somebody
// has gone. One rank alone needs nobody to be made anew.
void DecideOnShrink(absl::Span<const DeviceClaim> claims, DeviceDecision& decision) {
  if (claims.size() < 2 || !claims.front().kept.has_value()) return;
  const KeptClaim& first = *claims.front().kept;
  std::vector<int32_t> excluded;
  int32_t next = 0;  // of the old ranks
  for (const DeviceClaim& claim : claims) {
    if (!claim.kept.has_value() || claim.kept->generation != first.generation ||
        claim.kept->size != first.size || claim.kept->batches != first.batches ||
        claim.kept->rank < next || claim.kept->rank >= first.size)
      return;
    for (; next < claim.kept->rank && excluded.size() <= kMaxExcluded; ++next)
      excluded.push_back(next);
    next = claim.kept->rank + 1;
  }
  for (; next < first.size && excluded.size() <= kMaxExcluded; ++next) excluded.push_back(next);
  if (excluded.empty() || excluded.size() > kMaxExcluded) return;
  decision.excluded = std::move(excluded);
  decision.shrinks_of = first.generation;
}

std::string Who(const DeviceClaim& claim) {
  return absl::StrCat("rank ", claim.rank, " (host ", claim.host, ")");
}

// Ranks on each machine, where all have as many, two or more, that follow each other.
absl::StatusOr<int32_t> RanksPerMachine(absl::Span<const DeviceClaim> claims) {
  struct Run {
    const DeviceClaim* first;
    int32_t ranks;
  };
  std::vector<Run> runs;
  std::set<absl::string_view> machines;
  for (const DeviceClaim& claim : claims) {
    if (!runs.empty() && runs.back().first->machine == claim.machine) {
      ++runs.back().ranks;
    } else if (machines.insert(claim.machine).second) {
      runs.push_back({&claim, 1});
    } else {
      return absl::FailedPreconditionError(
          absl::StrCat(Who(claim), " does not follow the other ranks of its machine"));
    }
  }
  for (const Run& run : runs) {
    if (run.ranks == runs.front().ranks) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the machine of ", Who(*runs.front().first), " has ", runs.front().ranks,
                     " of the ranks and that of ", Who(*run.first), " has ", run.ranks));
  }
  if (runs.size() == 1) return absl::FailedPreconditionError("all ranks are on one machine");
  if (runs.front().ranks == 1)
    return absl::FailedPreconditionError("each machine has one of the ranks");
  return runs.front().ranks;
}

void DecideOnAlgorithm(absl::Span<const DeviceClaim> claims, const DeviceRules& rules,
                       DeviceDecision& decision) {
  const GpuAlgorithm algorithm = claims.front().algorithm;
  if (algorithm == GpuAlgorithm::kFlat) return;
  const bool worthwhile = std::all_of(claims.begin(), claims.end(), [](const DeviceClaim& claim) {
    return claim.rdma_for_host && !claim.rdma;
  });
  if (algorithm == GpuAlgorithm::kAuto && !worthwhile) return;
  const absl::StatusOr<int32_t> ranks = RanksPerMachine(claims);
  if (!rules.exchanges) {
    decision.why_flat = "the number of the process set is too large";
  } else if (!ranks.ok()) {
    decision.why_flat = std::string(ranks.status().message());
  } else {
    decision.ranks_per_node = *ranks;
  }
}

// What two ranks on one GPU may want instead.
std::string SharingHint(const std::string& nccl) {
  int major = 0, minor = 0;
  const std::vector<absl::string_view> parts = absl::StrSplit(nccl, '.');
  const bool known =
      parts.size() >= 2 && absl::SimpleAtoi(parts[0], &major) && absl::SimpleAtoi(parts[1], &minor);
  if (!known) return "";
  if (std::pair(major, minor) >= std::pair(2, 30)) {
    return ". NCCL 2.30 lets ranks share one with NCCL_MULTI_RANK_GPU_ENABLE=1, and coordd with "
           "COORDD_ALLOW_SHARED_GPU=1 besides, on all ranks; without MPS they are on it in turns";
  }
  return absl::StrCat(". NCCL ", nccl,
                      " lets no two ranks share one, under MPS either; 2.30 does, "
                      "with NCCL_MULTI_RANK_GPU_ENABLE=1");
}

}  // namespace

absl::string_view Name(GpuAlgorithm algorithm) {
  return kAlgorithms[static_cast<size_t>(algorithm)];
}

std::optional<GpuAlgorithm> GpuAlgorithmFromName(absl::string_view name) {
  for (size_t i = 0; i < std::size(kAlgorithms); ++i)
    if (kAlgorithms[i] == name) return static_cast<GpuAlgorithm>(i);
  return std::nullopt;
}

std::string EncodeClaim(const DeviceClaim& claim) {
  return absl::StrJoin(
      {absl::StrCat(claim.rank), OneField(claim.host), OneField(claim.uuid), OneField(claim.nccl),
       OneField(claim.why_not), std::string(claim.rdma ? kRdma : ""),
       std::string(claim.gpu_direct ? kGpuDirect : ""), OneField(claim.machine),
       EncodeNeighbours(claim.neighbours), std::string(claim.float8 ? kFloat8 : ""),
       absl::StrCat(claim.window_bytes), std::string(Name(claim.algorithm)),
       std::string(claim.rdma_for_host ? kRdmaForHost : ""), EncodeKept(claim.kept),
       std::string(claim.direct ? kDirect : ""), std::string(claim.multicast ? kMulticast : ""),
       std::string(claim.registers ? kRegisters : "")},
      "\n");
}

absl::StatusOr<DeviceClaim> DecodeClaim(absl::string_view text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  DeviceClaim claim;
  if (fields.size() != kFields || !absl::SimpleAtoi(fields[0], &claim.rank) ||
      !absl::SimpleAtoi(fields[10], &claim.window_bytes)) {
    return absl::InternalError(
        absl::StrCat("a claim of a GPU has ", fields.size(), " lines, expected ", kFields));
  }
  claim.host = fields[1];
  claim.uuid = fields[2];
  claim.nccl = fields[3];
  claim.why_not = fields[4];
  claim.rdma = fields[5] == kRdma;
  claim.gpu_direct = fields[6] == kGpuDirect;
  claim.machine = fields[7];
  claim.neighbours = DecodeNeighbours(fields[8]);
  claim.float8 = fields[9] == kFloat8;
  const std::optional<GpuAlgorithm> algorithm = GpuAlgorithmFromName(fields[11]);
  if (!algorithm.has_value())
    return absl::InternalError(absl::StrCat("a claim of a GPU wants algorithm ", fields[11]));
  claim.algorithm = *algorithm;
  claim.rdma_for_host = fields[12] == kRdmaForHost;
  if (!DecodeKept(fields[13], &claim.kept)) {
    return absl::InternalError(absl::StrCat("a claim of a GPU keeps a communicator \"", fields[13],
                                            "\", expected generation, rank, size and batches"));
  }
  claim.direct = fields[14] == kDirect;
  claim.multicast = fields[15] == kMulticast;
  claim.registers = fields[16] == kRegisters;
  return claim;
}

absl::StatusOr<DeviceDecision> DecideOnDevices(absl::Span<const DeviceClaim> claims,
                                               const DeviceRules& rules) {
  DeviceDecision decision;
  for (const DeviceClaim& claim : claims) {
    if (!claim.nccl.empty()) continue;
    decision.why_not = absl::StrCat(Who(claim), " has no NCCL: ", claim.why_not);
    return decision;
  }
  std::map<std::string, const DeviceClaim*> by_uuid;
  bool several_hosts = false;
  for (const DeviceClaim& claim : claims) {
    const DeviceClaim& first = claims.front();
    several_hosts = several_hosts || claim.host != first.host;
    if (claim.nccl != first.nccl) {
      return absl::FailedPreconditionError(absl::StrCat(
          Who(first), " has NCCL ", first.nccl, " and ", Who(claim), " has ", claim.nccl,
          ", expected one version on all ranks: install one, or name it in COORDD_NCCL_LIBRARY"));
    }
    if (claim.algorithm != first.algorithm) {
      return absl::FailedPreconditionError(absl::StrCat(
          Who(first), " has COORDD_GPU_ALGORITHM ", Name(first.algorithm), " and ", Who(claim),
          " has ", Name(claim.algorithm), ", expected one algorithm on all ranks"));
    }
    const auto [other, is_new] = by_uuid.emplace(claim.uuid, &claim);
    if (is_new || rules.allow_shared_gpu) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(Who(*other->second), " and ", Who(claim), " both use GPU ", claim.uuid,
                     ", expected one for each rank: give each rank a GPU of its own "
                     "(CUDA_VISIBLE_DEVICES, or the local rank as device)",
                     SharingHint(claim.nccl)));
  }
  for (const DeviceClaim& claim : claims) {
    if (!rules.require_rdma || !several_hosts || claim.rdma) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(Who(claim),
                     " has no active RDMA port that NCCL may use, expected one, since RDMA is "
                     "required (COORDD_REQUIRE_RDMA): look at ibv_devinfo and NCCL_IB_DISABLE"));
  }
  decision.nccl = true;
  decision.links = LinksBetween(claims);
  decision.rdma = decision.gpu_direct = decision.float8 = true;
  decision.direct = decision.registers = true;
  // A window of one size is made by all or by nobody.
  decision.windows = claims.front().window_bytes > 0;
  for (const DeviceClaim& claim : claims) {
    decision.several_machines = decision.several_machines || claim.machine != claims[0].machine;
    decision.float8 = decision.float8 && claim.float8;
    decision.direct = decision.direct && claim.direct;
    decision.multicast = decision.multicast || claim.multicast;
    decision.registers = decision.registers && claim.registers;
    decision.windows = decision.windows && claim.window_bytes == claims.front().window_bytes;
    decision.rdma = decision.rdma && claim.rdma;
    decision.gpu_direct = decision.gpu_direct && claim.gpu_direct;
  }
  // To make a window lasts as long as a rank does not come, on the thread that calls.
  decision.direct = decision.direct && !decision.windows;
  DecideOnAlgorithm(claims, rules, decision);
  DecideOnShrink(claims, decision);
  return decision;
}

std::string EncodeDecision(const absl::StatusOr<DeviceDecision>& decision) {
  if (!decision.ok()) return absl::StrCat(kRefused, decision.status().message());
  if (!decision->nccl) return absl::StrCat(kHost, decision->why_not);
  std::vector<absl::string_view> words = {kNccl};
  for (const auto& [word, links] : kLinkWords)
    if (decision->links == links) words.push_back(word);
  if (decision->several_machines) words.push_back(kSeveralMachines);
  if (decision->rdma) words.push_back(kRdma);
  if (decision->gpu_direct) words.push_back(kGpuDirect);
  if (decision->float8) words.push_back(kFloat8);
  if (decision->windows) words.push_back(kWindows);
  if (decision->direct) words.push_back(kDirect);
  if (decision->multicast) words.push_back(kMulticast);
  if (decision->registers) words.push_back(kRegisters);
  const std::string per_node = absl::StrCat(kRanksPerNode, decision->ranks_per_node);
  if (decision->ranks_per_node > 0) words.push_back(per_node);
  const std::string shrinks =
      absl::StrCat(kShrinks, decision->shrinks_of, "-", absl::StrJoin(decision->excluded, ","));
  if (!decision->excluded.empty()) words.push_back(shrinks);
  return absl::StrCat(absl::StrJoin(words, " "), decision->why_flat.empty() ? "" : kFlatSince,
                      decision->why_flat);
}

absl::StatusOr<DeviceDecision> DecodeDecision(absl::string_view text) {
  DeviceDecision decision;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(kFlatSince, 1));
  const std::vector<absl::string_view> words = absl::StrSplit(parts.first, ' ');
  decision.nccl = words[0] == kNccl;
  if (decision.nccl) decision.why_flat = std::string(parts.second);
  for (absl::string_view word : words) {
    if (!decision.nccl) break;
    for (const auto& [name, links] : kLinkWords)
      if (word == name) decision.links = links;
    if (word == kSeveralMachines) decision.several_machines = true;
    if (word == kRdma) decision.rdma = true;
    if (word == kGpuDirect) decision.gpu_direct = true;
    if (word == kFloat8) decision.float8 = true;
    if (word == kWindows) decision.windows = true;
    if (word == kDirect) decision.direct = true;
    if (word == kMulticast) decision.multicast = true;
    if (word == kRegisters) decision.registers = true;
    if (absl::ConsumePrefix(&word, kRanksPerNode) &&
        !absl::SimpleAtoi(word, &decision.ranks_per_node))
      return absl::InternalError("a decision about GPUs with a hierarchy that is none");
    if (absl::ConsumePrefix(&word, kShrinks) && !DecodeShrinks(word, &decision))
      return absl::InternalError("a decision about GPUs that shrinks a communicator by no ranks");
  }
  if (decision.nccl) return decision;
  if (absl::ConsumePrefix(&text, kHost)) {
    decision.why_not = std::string(text);
    return decision;
  }
  if (absl::ConsumePrefix(&text, kRefused)) return absl::FailedPreconditionError(text);
  return absl::InternalError("a decision about GPUs that is none");
}

}  // namespace coordd
