// What coordd is told of a rank's GPU.
#include "worker/gpu/plane/device_use.h"

#include <gmock/gmock.h>

#include <string>

#include "common/base/utf8.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

using testing::Le;
using testing::SizeIs;

DeviceFacts FactsOf(DeviceDecision decision) {
  DeviceFacts facts;
  DeviceIdentity device;
  device.index = 3;
  device.uuid = "GPU-8f3c";
  device.model = "NVIDIA H200";
  facts.device = device;
  facts.nccl = "2.28.9";
  facts.decisions.emplace(ProcessSetId{0}, std::move(decision));
  return facts;
}

v1::TensorPath PathOf(const DeviceFacts& facts) { return DescribeDeviceUse(facts).paths(0); }

TEST(DeviceUse, NamesTheGpuAndTheVersionOfNccl) {
  const v1::DeviceUse use = DescribeDeviceUse(FactsOf({}));
  EXPECT_EQ(use.device().kind(), v1::MEMORY_KIND_CUDA);
  EXPECT_EQ(use.device().index(), 3);
  EXPECT_EQ(use.device().uuid(), "GPU-8f3c");
  EXPECT_EQ(use.device().model(), "NVIDIA H200");
  EXPECT_EQ(use.nccl(), "2.28.9");
  EXPECT_EQ(use.sharing(), "");
  EXPECT_FALSE(DescribeDeviceUse({}).has_device());
}

TEST(DeviceUse, SaysWhatPartOfAGpuItIs) {
  DeviceFacts facts = FactsOf({});
  facts.device->model = "NVIDIA H200 MIG 1g.18gb";
  facts.mps = "MPS";
  EXPECT_EQ(DescribeDeviceUse(facts).sharing(), "MIG 1g.18gb, MPS");
}

TEST(DeviceUse, SaysWhatNcclTravelsOver) {
  DeviceDecision decision{true, "", NodeLinks::kNvLink};
  EXPECT_EQ(PathOf(FactsOf(decision)).within_node(), "NVLink");
  EXPECT_EQ(PathOf(FactsOf(decision)).between_nodes(), "");
  decision.several_machines = true;
  EXPECT_EQ(PathOf(FactsOf(decision)).between_nodes(), "TCP sockets");
  decision.rdma = true;
  EXPECT_EQ(PathOf(FactsOf(decision)).between_nodes(), "RDMA, without GPUDirect");
  decision.gpu_direct = true;
  decision.links = NodeLinks::kNone;
  DeviceFacts facts = FactsOf(decision);
  EXPECT_EQ(PathOf(facts).between_nodes(), "RDMA, GPUDirect");
  EXPECT_EQ(PathOf(facts).within_node(), "");
  facts.net_plugin = "libnccl-net.so";
  EXPECT_EQ(PathOf(facts).between_nodes(), "plugin libnccl-net.so");
  EXPECT_TRUE(PathOf(facts).nccl());
}

TEST(DeviceUse, SaysWhichAlgorithmAndWhy) {
  DeviceDecision decision{true, "", NodeLinks::kNvLink, true};
  EXPECT_FALSE(PathOf(FactsOf(decision)).hierarchical());
  decision.why_flat = "each machine has one of the ranks";
  EXPECT_EQ(PathOf(FactsOf(decision)).why_flat(), "each machine has one of the ranks");
  decision.why_flat.clear();
  decision.ranks_per_node = 2;
  EXPECT_TRUE(PathOf(FactsOf(decision)).hierarchical());
  EXPECT_EQ(PathOf(FactsOf(decision)).why_flat(), "");
}

TEST(DeviceUse, SaysWhyTensorsGoThroughHostMemoryOrNowhere) {
  v1::TensorPath path = PathOf(FactsOf({false, "rank 2 has no NCCL", NodeLinks::kNvLink}));
  EXPECT_FALSE(path.nccl());
  EXPECT_FALSE(path.refused());
  EXPECT_EQ(path.why_not(), "rank 2 has no NCCL");
  EXPECT_EQ(path.within_node(), "");
  DeviceFacts facts;
  facts.decisions.emplace(ProcessSetId{4}, absl::FailedPreconditionError("two on one GPU"));
  path = PathOf(facts);
  EXPECT_EQ(path.process_set(), 4);
  EXPECT_TRUE(path.refused());
  EXPECT_EQ(path.why_not(), "two on one GPU");
}

TEST(DeviceUse, KeepsTheBoundsOfTheProtocolWhateverALoaderSays) {
  const std::string wild = std::string(1022, 'x') + "\xff\n\x1b[31m" + std::string(100'000, 'y');
  DeviceFacts facts;
  facts.device.emplace();
  facts.device->uuid = facts.device->model = wild;
  facts.nccl = facts.no_nccl = facts.net_plugin = wild;
  for (int32_t set = 0; set < 1000; ++set)
    facts.decisions.emplace(ProcessSetId{set}, DeviceDecision{set == 0, wild, {}, true});
  const v1::DeviceUse use = DescribeDeviceUse(facts);
  EXPECT_THAT(use.paths(), SizeIs(kMaxTensorPaths));
  EXPECT_EQ(use.more_paths(), 1000 - kMaxTensorPaths);
  EXPECT_THAT(use.no_nccl(), SizeIs(Le(kMaxReasonBytes)));
  EXPECT_THAT(use.paths(1).why_not(), SizeIs(Le(kMaxReasonBytes)));
  EXPECT_THAT(use.paths(0).between_nodes(), SizeIs(Le(kMaxTransportBytes)));
  EXPECT_THAT(use.nccl(), SizeIs(Le(kMaxVersionBytes)));
  EXPECT_THAT(use.device().model(), SizeIs(Le(kMaxDeviceFieldBytes)));
  for (const std::string& text : {use.no_nccl(), use.paths(1).why_not(), use.device().uuid()}) {
    EXPECT_TRUE(IsUtf8(text));
    for (char c : text) EXPECT_GE(static_cast<unsigned char>(c), ' ');
  }
}

}  // namespace
}  // namespace coordd
