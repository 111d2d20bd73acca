#include "worker/nccl/device_claim.h"

#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace coordd {
namespace {

// Fields are lines. What comes from a loader's message is the only long one.
constexpr size_t kFields = 6;
constexpr size_t kMaxFieldBytes = 300;
constexpr char kNccl[] = "nccl";
constexpr char kHost[] = "host ";
constexpr char kRefused[] = "refused ";

std::string OneLine(absl::string_view text) {
  return absl::StrReplaceAll(text.substr(0, kMaxFieldBytes), {{"\n", " "}});
}

std::string Who(const DeviceClaim& claim) {
  return absl::StrCat("rank ", claim.rank, " (host ", claim.host, ")");
}

}  // namespace

std::string EncodeClaim(const DeviceClaim& claim) {
  return absl::StrJoin(
      {absl::StrCat(claim.rank), OneLine(claim.host), OneLine(claim.uuid), OneLine(claim.nccl),
       OneLine(claim.why_not), std::string(claim.rdma ? "rdma" : "")},
      "\n");
}

absl::StatusOr<DeviceClaim> DecodeClaim(absl::string_view text) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  DeviceClaim claim;
  if (fields.size() != kFields || !absl::SimpleAtoi(fields[0], &claim.rank)) {
    return absl::InternalError(
        absl::StrCat("a claim of a GPU has ", fields.size(), " lines, expected ", kFields));
  }
  claim.host = fields[1];
  claim.uuid = fields[2];
  claim.nccl = fields[3];
  claim.why_not = fields[4];
  claim.rdma = fields[5] == "rdma";
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
    const auto [other, is_new] = by_uuid.emplace(claim.uuid, &claim);
    if (is_new || rules.allow_shared_gpu) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(Who(*other->second), " and ", Who(claim), " both use GPU ", claim.uuid,
                     ", expected one for each rank: give each rank a GPU of its own "
                     "(CUDA_VISIBLE_DEVICES, or the local rank as device)"));
  }
  for (const DeviceClaim& claim : claims) {
    if (!rules.require_rdma || !several_hosts || claim.rdma) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(Who(claim),
                     " has no active RDMA port that NCCL may use, expected one, since RDMA is "
                     "required (COORDD_REQUIRE_RDMA): look at ibv_devinfo and NCCL_IB_DISABLE"));
  }
  decision.nccl = true;
  return decision;
}

std::string EncodeDecision(const absl::StatusOr<DeviceDecision>& decision) {
  if (!decision.ok()) return absl::StrCat(kRefused, decision.status().message());
  return decision->nccl ? std::string(kNccl) : absl::StrCat(kHost, decision->why_not);
}

absl::StatusOr<DeviceDecision> DecodeDecision(absl::string_view text) {
  DeviceDecision decision;
  decision.nccl = text == kNccl;
  if (decision.nccl) return decision;
  if (absl::ConsumePrefix(&text, kHost)) {
    decision.why_not = std::string(text);
    return decision;
  }
  if (absl::ConsumePrefix(&text, kRefused)) return absl::FailedPreconditionError(text);
  return absl::InternalError("a decision about GPUs that is none");
}

}  // namespace coordd
