// Ranges reach a profiler that listens to NVTX.
#include "worker/gpu/cuda/nvtx.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/gpu/fake_gpu.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using testing::ElementsAre;

// Thread and what it said.
std::vector<std::pair<std::string, std::string>> Written(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t space = line.find(' ');
    lines.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return lines;
}

// One test: a process attaches once.
TEST(Nvtx, RangesReachTheProfilerOnTheThreadThatMakesThem) {
  EXPECT_EQ(Nvtx::Attach(""), nullptr);
  const TempDirectory folder;
  const std::string path = folder.path() + "/nvtx";
  setenv("FAKE_NVTX", path.c_str(), 1);
  const Nvtx* const nvtx = Nvtx::Attach(FakeNvtxPath());
  ASSERT_NE(nvtx, nullptr);
  EXPECT_EQ(Nvtx::Attach("/no/such/library.so"), nvtx);
  nvtx->NameCategory(ProcessSetId{3}, "process set 3");
  {
    const NvtxRange outer(*nvtx, ProcessSetId{0}, "allreduce grad/17 +3", int64_t{1} << 33);
    std::thread([nvtx] { NvtxRange(*nvtx, ProcessSetId{3}, "barrier", 0); }).join();
  }
  unsetenv("FAKE_NVTX");
  const auto written = Written(path);
  std::vector<std::string> lines;
  for (const auto& [thread, line] : written) lines.push_back(line);
  ASSERT_THAT(lines, ElementsAre("coordd category 4 [process set 3]",
                                 "coordd push 1 [allreduce grad/17 +3] 8589934592",
                                 "coordd push 4 [barrier] 0", "coordd pop", "coordd pop"));
  EXPECT_EQ(written[1].first, written[4].first);
  EXPECT_EQ(written[2].first, written[3].first);
  EXPECT_NE(written[1].first, written[2].first);
}

}  // namespace
}  // namespace coordd
