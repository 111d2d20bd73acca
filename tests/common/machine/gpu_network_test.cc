#include "common/machine/gpu_network.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "common/machine/transport_rows.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using testing::_;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

namespace fs = std::filesystem;

class GpuNetworkTest : public testing::Test {
 protected:
  void Write(const char* path, const char* text) {
    fs::create_directories((root() / path).parent_path());
    std::ofstream(root() / path) << text;
  }
  fs::path root() const { return folder_.path(); }
  GpuNetwork Look(const Environment& environment = {}) const {
    return LookForGpuNetwork(environment, root().string());
  }

 private:
  const TempDirectory folder_;
};

TEST_F(GpuNetworkTest, RdmaIsAPortThatIsActiveAndMayBeUsed) {
  EXPECT_FALSE(Look().rdma);
  Write("class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  EXPECT_FALSE(Look().rdma);
  Write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  EXPECT_TRUE(Look().rdma);
  EXPECT_FALSE(Look({{"NCCL_IB_DISABLE", "1"}}).rdma);
  EXPECT_FALSE(Look({{"NCCL_NET", "Socket"}}).rdma);
  EXPECT_FALSE(LookForGpuNetwork({}, "/no/such/folder").rdma);
  // For others than NCCL, and for no plugin of it.
  EXPECT_FALSE(Look().unused_rdma);
  EXPECT_TRUE(Look({{"NCCL_IB_DISABLE", "1"}}).unused_rdma);
  EXPECT_TRUE(Look({{"NCCL_NET", "Socket"}, {"NCCL_NET_PLUGIN", "none"}}).unused_rdma);
  EXPECT_FALSE(Look({{"NCCL_IB_DISABLE", "1"}, {"NCCL_NET_PLUGIN", "own"}}).unused_rdma);
  EXPECT_FALSE(LookForGpuNetwork({{"NCCL_IB_DISABLE", "1"}}, "/no/such/folder").unused_rdma);
}

TEST_F(GpuNetworkTest, NamesActivePortsWithTheirLink) {
  Write("class/infiniband/mlx5_1/ports/1/state", "4: ACTIVE\n");
  Write("class/infiniband/mlx5_1/ports/1/link_layer", "Ethernet\n");
  Write("class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE\n");
  Write("class/infiniband/mlx5_2/ports/1/state", "2: INIT\n");
  EXPECT_THAT(ActiveRdmaPorts(root().string()),
              ElementsAre("mlx5_0 port 2", "mlx5_1 port 1 (Ethernet)"));
}

TEST_F(GpuNetworkTest, GpuDirectNeedsAModuleOrDmaBufAndNcclsLeave) {
  EXPECT_FALSE(Look().peer_memory);
  Write("module/nvidia_peermem/version", "1");
  EXPECT_TRUE(Look().peer_memory);
  EXPECT_TRUE(Look().gpu_direct);
  EXPECT_TRUE(Look().dma_buf);
  EXPECT_FALSE(Look({{"NCCL_NET_GDR_LEVEL", "LOC"}}).gpu_direct);
  EXPECT_TRUE(Look({{"NCCL_NET_GDR_LEVEL", "PHB"}}).gpu_direct);
  EXPECT_FALSE(Look({{"NCCL_DMABUF_ENABLE", "0"}}).dma_buf);
  EXPECT_TRUE(Look().peer_to_peer);
  EXPECT_FALSE(Look({{"NCCL_P2P_DISABLE", "1"}}).peer_to_peer);
  EXPECT_FALSE(Look({{"NCCL_P2P_LEVEL", "LOC"}}).peer_to_peer);
}

TEST(NetPlugin, IsLookedForUnderTheNamesThatNcclTakes) {
  EXPECT_THAT(NetPluginNames({}), ElementsAre("libnccl-net.so"));
  EXPECT_THAT(NetPluginNames({{"NCCL_NET_PLUGIN", "ofi"}}),
              ElementsAre("ofi", "libnccl-net-ofi.so"));
  EXPECT_THAT(NetPluginNames({{"NCCL_NET_PLUGIN", "none"}}), IsEmpty());
  EXPECT_EQ(LoadedNetPlugin({}), "");
  EXPECT_EQ(LoadedNetPlugin({{"NCCL_NET_PLUGIN", "libc.so.6"}}), "libc.so.6");
}

TEST_F(GpuNetworkTest, RowsSayWhatIsThereOrWhyNot) {
  const Environment environment = {{"NCCL_NET_PLUGIN", "no-such"}};
  const auto lines = [&](const Environment& variables) {
    std::vector<std::string> out;
    for (const Component& row :
         TransportComponents(variables, root().string(), "libno-such-driver.so"))
      out.push_back(ToLine(row));
    return out;
  };
  EXPECT_THAT(lines(environment),
              ElementsAre(_, HasSubstr("[ ] NVLink: "), HasSubstr("[ ] RDMA: no active port"),
                          "[ ] GPUDirect RDMA: no RDMA",
                          HasSubstr("[ ] NCCL network plugin: libnccl-net-no-such.so"),
                          HasSubstr("[ ] a part of a GPU: neither")));
  Write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  EXPECT_THAT(lines({{"NCCL_NET_PLUGIN", "libc.so.6"}}),
              ElementsAre(_, HasSubstr("[ ] NVLink: "), "[X] RDMA: mlx5_0 port 1",
                          HasSubstr("[ ] GPUDirect RDMA: neither"),
                          "[X] NCCL network plugin: libc.so.6", _));
  Write("module/nvidia_peermem/version", "1");
  EXPECT_THAT(lines({{"NCCL_IB_DISABLE", "1"}, {"NCCL_NET_PLUGIN", "none"}}),
              ElementsAre(_, HasSubstr("[ ] NVLink: "), HasSubstr("[ ] RDMA: switched off"),
                          "[ ] GPUDirect RDMA: no RDMA",
                          HasSubstr("[ ] NCCL network plugin: switched off"), _));
  EXPECT_EQ(lines({})[3], "[X] GPUDirect RDMA: nvidia_peermem");
}

TEST_F(GpuNetworkTest, RowsSayWhatGoesBetweenNodes) {
  const auto between = [&](const Environment& variables) {
    return ToLine(TransportComponents(variables, root().string(), "libno-such-driver.so").front());
  };
  EXPECT_EQ(between({}), "[X] between nodes: coordd's TCP, in plain");
  EXPECT_EQ(between({{"COORDD_DATA_ENCRYPTION", "on"}}),
            "[X] between nodes: coordd's TCP, encrypted");
  EXPECT_THAT(between({{"COORDD_TRANSPORT", "ucx"}}), HasSubstr("believes whoever"));
  EXPECT_EQ(between({{"COORDD_TRANSPORT", "foo"}}),
            "[ ] between nodes: COORDD_TRANSPORT is \"foo\", expected one of auto, mapped, shm, "
            "tcp, ucx");
  EXPECT_EQ(between({{"COORDD_DATA_ENCRYPTION", "yes"}}),
            "[ ] between nodes: COORDD_DATA_ENCRYPTION is \"yes\", expected one of on, off");
  Write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  EXPECT_THAT(between({}), HasSubstr("RDMA by UCX where both ranks have it"));
  EXPECT_EQ(between({{"COORDD_TRANSPORT", "tcp"}}), "[X] between nodes: coordd's TCP, in plain");
  EXPECT_EQ(between({{"COORDD_DATA_ENCRYPTION", "on"}}),
            "[X] between nodes: coordd's TCP, encrypted");
}

}  // namespace
}  // namespace coordd
