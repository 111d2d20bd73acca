#include "common/machine/gpu_sharing.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>

#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

class GpuSharingTest : public ::testing::Test {
 protected:
  // As a control daemon's.
  static void MakeSocket(const std::string& path) {
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    close(fd);
  }
  std::string folder() const { return folder_.path(); }

 private:
  const TempDirectory folder_;
};

TEST_F(GpuSharingTest, MpsIsThereWhereItsDaemonHasASocket) {
  EXPECT_EQ(LookForMps({}, folder()), "");
  EXPECT_EQ(LookForMps({{"CUDA_MPS_PIPE_DIRECTORY", folder()}}, "/nowhere"), "");
  MakeSocket(folder() + "/control");
  EXPECT_EQ(LookForMps({}, folder()), "MPS");
  EXPECT_EQ(LookForMps({{"CUDA_MPS_PIPE_DIRECTORY", folder()}}, "/nowhere"), "MPS");
  EXPECT_EQ(LookForMps({{"CUDA_MPS_PIPE_DIRECTORY", ""}}, folder()), "MPS");
  EXPECT_EQ(LookForMps({{"CUDA_MPS_PIPE_DIRECTORY", "/nowhere"}}, folder()), "")
      << "so programs stay away from it";
  EXPECT_EQ(LookForMps({{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "45"}}, folder()),
            "MPS, up to 45 % of its threads");
}

TEST_F(GpuSharingTest, APlainFileIsNoDaemon) {
  std::ofstream(folder() + "/control") << "";
  EXPECT_EQ(LookForMps({}, folder()), "");
}

TEST(GpuSharing, AModelNamesItsSlice) {
  EXPECT_EQ(MigSliceOf("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), "MIG 1g.10gb");
  EXPECT_EQ(MigSliceOf("NVIDIA H100 80GB HBM3"), "");
  EXPECT_EQ(GpuSharing("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "MPS"), "MIG 1g.10gb, MPS");
  EXPECT_EQ(GpuSharing("NVIDIA H100 80GB HBM3", "MPS"), "MPS");
  EXPECT_EQ(GpuSharing("NVIDIA H100 80GB HBM3", ""), "");
}

}  // namespace
}  // namespace coordd
