#include "tests/support/gpu/fake_nccl_rules.h"

#include <mutex>
#include <string>

#include "tests/support/gpu/fake_cuda.h"
#include "tests/support/gpu/fake_nccl.h"
#include "tests/support/gpu/fake_nccl_version.h"

namespace {

std::mutex name_mu;
std::string last_name;

void NoteName(const char* name) {
  std::lock_guard lock(name_mu);
  last_name = name;
}

}  // namespace

extern "C" const char* fake_nccl_last_name() {
  static thread_local std::string answer;
  std::lock_guard lock(name_mu);
  answer = last_name;
  return answer.c_str();
}

namespace coordd {

bool OnDevice(const void* pointer, int device) {
  return pointer == nullptr || fake_cuda_device_of(pointer) == device;
}

const char* Float8Rule(const FakeCall& call, int version) {
  if (call.type != NcclType::kFloat8E4m3 && call.type != NcclType::kFloat8E5m2) return nullptr;
  if (version < kNcclVersionFloat8) return "a type that this version does not know";
  const bool reduces = call.kind == FakeCall::kAllReduce || call.kind == FakeCall::kReduce ||
                       call.kind == FakeCall::kReduceScatter;
  return reduces && fake_cuda_capability() < 9
             ? "FP8 reduction support begins with sm90 capable devices"
             : nullptr;
}

// What it is told to expect (config_min_ctas=4), and nothing else.
const char* WishesRule(const NcclConfig* config) {
  if (config == nullptr || config->magic != 0xcafebeef) return "a configuration that is not one";
  const bool has_name = config->size == sizeof(NcclConfig);
  if (!has_name && config->size != NcclConfig::kSizeWithoutName)
    return "a configuration of another size";
  if (has_name && FAKE_NCCL_VERSION < 22703) return "a name, which this version does not know";
  if (has_name && config->name == nullptr) return "a configuration without its name";
  NoteName(has_name ? config->name : "");
  const auto expected = [](const char* name) {
    const long told = FakeNcclSettings().Get(name);
    return told == 0 ? NcclConfig::kUndefined : static_cast<int>(told);
  };
  if (config->min_ctas != expected("config_min_ctas")) return "a configuration with other minCTAs";
  if (config->max_ctas != expected("config_max_ctas")) return "a configuration with other maxCTAs";
  if (config->cga_cluster_size != expected("config_cga_cluster_size"))
    return "a configuration with another cgaClusterSize";
  const bool has_network = config->net_name != nullptr && config->net_name[0] != '\0';
  if (has_network != (FakeNcclSettings().Get("config_net_name") != 0))
    return "a configuration with another netName";
  // 2.26.2 takes what stands there for the traffic class, whatever the version in it; later ones,
  // of a configuration that says it has one.
  if (config->traffic_class != expected("config_traffic_class"))
    return "a configuration with another traffic class";
  if (config->traffic_class != NcclConfig::kUndefined && config->version < 22600)
    return "a configuration of a version without traffic class";
  return nullptr;
}

const char* ConfigRule(const NcclConfig* config) {
  if (const char* rule = WishesRule(config); rule != nullptr) return rule;
  const bool may_block = FakeNcclSettings().Get("blocking") == 1 && config->blocking == 1;
  return config->blocking == 0 || may_block ? nullptr : "a configuration that is not non-blocking";
}

NcclUniqueId ChildId(const FakeComm& parent) {
  NcclUniqueId id = parent.id;
  for (size_t i = 0; i < 16; ++i)
    id.bytes[i] = static_cast<char>(id.bytes[i] * 31 + static_cast<int>(parent.children) + 7);
  return id;
}

uint64_t ShrinkDigest(const FakeComm& parent, const int* excluded, int count) {
  uint64_t digest = 14695981039346656037u;
  auto add = [&digest](uint64_t value) { digest = (digest ^ value) * 1099511628211u; };
  add(static_cast<uint64_t>(parent.given.load()));
  for (int i = 0; i < count; ++i) add(static_cast<uint64_t>(excluded[i]));
  return digest | 1;
}

const char* ShrinkRule(const FakeComm& comm, const int* excluded, int count,
                       const NcclConfig* config, int flags) {
  if (!comm.initialised) return "ncclCommShrink before the end of init";
  if (comm.finalized) return "ncclCommShrink after ncclCommFinalize";
  if (comm.polls > 0 || comm.window_pending || comm.shrinking || comm.launched > 0)
    return "ncclCommShrink while something is under way";
  if (count <= 0 || count >= comm.size) return "ncclCommShrink without ranks, or without all";
  for (int i = 0; i < count; ++i) {
    if (excluded[i] == comm.rank) return "ncclCommShrink by a rank that is excluded";
    if (excluded[i] < 0 || excluded[i] >= comm.size || (i > 0 && excluded[i] <= excluded[i - 1]))
      return "ncclCommShrink with ranks that are not in order";
  }
  if (const char* rule = WishesRule(config); rule != nullptr) return rule;
  if (config->blocking != 0) return "ncclCommShrink that is not non-blocking";
  if (flags != kNcclShrinkDefault) return "ncclCommShrink with flags";
  return nullptr;
}

const char* SplitRule(const FakeComm& comm, int color, int key, const NcclConfig* config) {
  if (!comm.initialised) return "ncclCommSplit before the end of init";
  if (comm.finalized) return "ncclCommSplit after ncclCommFinalize";
  if (comm.polls > 0 || comm.window_pending || comm.shrinking || comm.launched > 0)
    return "ncclCommSplit while something is under way";
  if (color != 0 || key != comm.rank) return "ncclCommSplit into others than all ranks in order";
  if (const char* rule = WishesRule(config); rule != nullptr) return rule;
  if (config->blocking != 1 || config->split_share != 1)
    return "ncclCommSplit of one that is not blocking, or shares nothing";
  return nullptr;
}

}  // namespace coordd
