#include "client/coordrun/checks/torch_traps.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const std::vector<std::string> kPython = {"python3", "train.py"};

// A host with four ranks, four cores for each, and a /dev/shm that is large enough.
HostReport RoomyHost(const std::string& name) {
  HostReport host;
  host.channel = name;
  host.report.set_host(name);
  host.report.set_local_size(4);
  host.report.set_cores(16);
  host.report.set_cpus("0-15");
  host.report.set_shared_memory_bytes(int64_t{512} << 20);
  return host;
}

std::vector<Finding> JudgeTraps(const Environment& environment,
                                const std::vector<HostReport>& hosts = {RoomyHost("n1"),
                                                                        RoomyHost("n2")}) {
  return JudgeTorchTraps(hosts, environment, kPython);
}

// The only sentence, which is a warning.
std::string OnlyText(const std::vector<Finding>& findings) {
  EXPECT_THAT(findings, SizeIs(1)) << FindingsText(findings);
  if (findings.empty()) return "";
  EXPECT_FALSE(findings[0].error);
  return findings[0].text;
}

TEST(TorchTraps, FindsNothingWhereNothingIsSet) { EXPECT_THAT(JudgeTraps({}), IsEmpty()); }

TEST(TorchTraps, CountsTheThreadsOfTheRanksOfAHost) {
  EXPECT_THAT(JudgeTraps({{"OMP_NUM_THREADS", "4"}}), IsEmpty()) << "that is the share";
  EXPECT_EQ(OnlyText(JudgeTraps({{"OMP_NUM_THREADS", "8"}})),
            "hosts n1, n2: OMP_NUM_THREADS=8 gives 4 ranks 32 threads on 16 cores, which wait for "
            "each other: expected 4 at most, or unset");
  EXPECT_THAT(OnlyText(JudgeTraps({{"MKL_NUM_THREADS", "16"}})),
              HasSubstr("MKL_NUM_THREADS=16 gives 4 ranks 64 threads on 16 cores"));
  EXPECT_THAT(JudgeTraps({{"OMP_NUM_THREADS", "8"}, {"MKL_NUM_THREADS", "8"}}), SizeIs(2));
}

TEST(TorchTraps, NamesOnlyTheHostsWhoseCoresAreTooFew) {
  std::vector<HostReport> hosts = {RoomyHost("n1"), RoomyHost("n2"), RoomyHost("n3")};
  hosts[1].report.set_cores(8);
  EXPECT_THAT(OnlyText(JudgeTraps({{"OMP_NUM_THREADS", "4"}}, hosts)),
              AllOf(HasSubstr("host n2: "), HasSubstr("16 threads on 8 cores")));
}

TEST(TorchTraps, SeesOneThreadWhereThereAreManyCores) {
  std::vector<HostReport> hosts = {RoomyHost("n1")};
  EXPECT_THAT(JudgeTraps({{"OMP_NUM_THREADS", "1"}}, hosts), IsEmpty())
      << "four cores each are few";
  hosts[0].report.set_cores(64);
  EXPECT_EQ(OnlyText(JudgeTraps({{"OMP_NUM_THREADS", "1"}}, hosts)),
            "host n1: OMP_NUM_THREADS=1 gives 4 ranks one thread each and leaves 60 of 64 cores "
            "idle: expected 16, or unset");
  EXPECT_THAT(JudgeTraps({{"OMP_NUM_THREADS", "2"}}, hosts), IsEmpty())
      << "somebody has thought of it";
}

TEST(TorchTraps, ReadsThreadsAsOpenMpDoes) {
  EXPECT_THAT(OnlyText(JudgeTraps({{"OMP_NUM_THREADS", " 8,2"}})),
              HasSubstr("OMP_NUM_THREADS=8 gives"));
  EXPECT_THAT(JudgeTraps({{"OMP_NUM_THREADS", ""}, {"MKL_NUM_THREADS", "many"}}), IsEmpty());
}

TEST(TorchTraps, LeavesRanksWithoutACoreToTheOtherCheck) {
  std::vector<HostReport> hosts = {RoomyHost("n1")};
  hosts[0].report.set_cores(2);
  EXPECT_THAT(JudgeTraps({{"OMP_NUM_THREADS", "2"}}, hosts), IsEmpty());
}

TEST(TorchTraps, WantsRoomForTheBatchesOfDataLoaders) {
  std::vector<HostReport> hosts = {RoomyHost("n1"), RoomyHost("n2")};
  hosts[1].report.set_shared_memory_bytes(int64_t{64} << 20);
  EXPECT_THAT(OnlyText(JudgeTraps({}, hosts)),
              AllOf(HasSubstr("host n2: /dev/shm has 64 MiB for 4 ranks"), HasSubstr("--shm-size"),
                    HasSubstr("expected 512 MiB")));
  EXPECT_THAT(JudgeTorchTraps(hosts, {}, {"./a.out"}), IsEmpty()) << "no Python, no DataLoader";
  hosts[1].report.set_shared_memory_bytes(0);
  EXPECT_THAT(JudgeTraps({}, hosts), IsEmpty()) << "nobody has looked, or there is none";
}

TEST(TorchTraps, NamesVariablesThatTakeFromCoorddWhatItDoes) {
  EXPECT_THAT(OnlyText(JudgeTraps({{"NCCL_COMM_ID", "10.0.0.1:4000"}})),
              HasSubstr("NCCL_COMM_ID=10.0.0.1:4000 has all communicators"));
  EXPECT_THAT(OnlyText(JudgeTraps({{"NCCL_COMM_BLOCKING", "1"}})),
              HasSubstr("expected 0, or unset"));
  EXPECT_THAT(OnlyText(JudgeTraps({{"NCCL_LOCAL_REGISTER", "0"}})),
              HasSubstr("--no-gpu-registration"));
  EXPECT_THAT(OnlyText(JudgeTraps({{"TORCH_DISTRIBUTED_DEBUG", "detail"}})),
              HasSubstr("compare each call"));
  EXPECT_THAT(JudgeTraps({{"NCCL_COMM_BLOCKING", "0"},
                          {"NCCL_LOCAL_REGISTER", "1"},
                          {"TORCH_DISTRIBUTED_DEBUG", "INFO"},
                          {"NCCL_DEBUG", "INFO"}}),
              IsEmpty());
}

TEST(TorchTraps, JudgesVariablesWhereNobodyHasLookedAtHosts) {
  EXPECT_THAT(JudgeTraps({{"NCCL_COMM_ID", "h:1"}, {"OMP_NUM_THREADS", "99"}}, {}), SizeIs(1));
}

}  // namespace
}  // namespace coordd
