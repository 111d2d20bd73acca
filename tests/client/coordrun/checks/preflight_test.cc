#include "client/coordrun/checks/preflight.h"

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kAsked = absl::FromUnixSeconds(1000000);
constexpr char kVersion[] = "1.2";

// A host with which nothing is wrong.
HostReport Host(const std::string& name) {
  HostReport host;
  host.channel = name;
  host.asked = kAsked;
  host.answered = kAsked + absl::Seconds(1);
  host.report.set_version(kVersion);
  host.report.set_host(name);
  host.report.set_local_size(4);
  host.report.set_cores(32);
  host.report.set_cpus("0-31");
  for (int gpu = 0; gpu < 4; ++gpu) host.report.add_gpus("H200");
  host.report.set_visible_gpus(4);
  host.report.set_nccl("2.28");
  host.report.set_ucx("1.13");
  host.report.set_unix_seconds(1000000.5);
  return host;
}

std::vector<HostReport> Three() { return {Host("n1"), Host("n2"), Host("n3")}; }

// The only finding.
Finding Only(const std::vector<HostReport>& hosts, LauncherKind launcher = LauncherKind::kSsh) {
  const auto findings = JudgeHosts(hosts, launcher, kVersion);
  EXPECT_THAT(findings, SizeIs(1)) << FindingsText(findings);
  return findings.empty() ? Finding() : findings[0];
}

TEST(Preflight, FindsNothingOnHostsThatAreAlike) {
  EXPECT_THAT(JudgeHosts(Three(), LauncherKind::kSsh, kVersion), IsEmpty());
}

TEST(Preflight, NamesTheOddHost) {
  auto hosts = Three();
  hosts[1].report.set_nccl("2.27");
  const Finding nccl = Only(hosts);
  EXPECT_FALSE(nccl.error);
  EXPECT_EQ(nccl.host, "n2");
  EXPECT_THAT(nccl.text, HasSubstr("host n2 has NCCL 2.27, hosts n1, n3 have 2.28"));
  hosts = Three();
  hosts[2].report.set_gpus(0, "A100");
  EXPECT_THAT(Only(hosts).text,
              HasSubstr("host n3 has GPUs 1 x A100 + 3 x H200, hosts n1, n2 have 4 x H200"));
  hosts = Three();
  hosts[0].report.set_ucx("");
  EXPECT_THAT(Only(hosts).text, HasSubstr("host n1 has UCX none"));
}

TEST(Preflight, RefusesAnotherVersionOfCoordd) {
  auto hosts = Three();
  hosts[1].report.set_version("1.1");
  EXPECT_TRUE(Only(hosts).error);
  for (HostReport& host : hosts) host.report.set_version("1.1");
  const Finding all = Only(hosts);
  EXPECT_TRUE(all.error);
  EXPECT_THAT(all.text, HasSubstr("the hosts have coordd 1.1, this machine has 1.2"));
}

TEST(Preflight, NamesAClockThatIsWrong) {
  auto hosts = Three();
  hosts[1].report.set_unix_seconds(hosts[1].report.unix_seconds() + 30);
  const Finding ahead = Only(hosts);
  EXPECT_FALSE(ahead.error);
  EXPECT_THAT(ahead.text, HasSubstr("host n2: its clock is 30 s ahead of"));
  hosts = Three();
  hosts[2].report.set_unix_seconds(hosts[2].report.unix_seconds() - 700);
  const Finding behind = Only(hosts);
  EXPECT_TRUE(behind.error) << "certificates are not valid yet there";
  EXPECT_THAT(behind.text, HasSubstr("host n3: its clock is 700 s behind"));
  hosts = Three();
  hosts[0].answered = kAsked + absl::Seconds(20);
  hosts[0].report.set_unix_seconds(hosts[0].report.unix_seconds() + 15);
  EXPECT_THAT(JudgeHosts(hosts, LauncherKind::kSsh, kVersion), IsEmpty())
      << "a slow answer is no wrong clock";
}

TEST(Preflight, WantsACoreAndAGpuForEachRank) {
  auto hosts = Three();
  hosts[1].report.set_cores(1);
  EXPECT_THAT(Only(hosts).text, HasSubstr("host n2: 4 ranks share 1 core"));
  hosts = Three();
  hosts[1].report.set_visible_gpus(2);
  EXPECT_THAT(Only(hosts).text, HasSubstr("host n2: 4 ranks, each of which sees 2 GPUs"));
  hosts[1].report.set_visible_gpus(0);
  EXPECT_THAT(JudgeHosts(hosts, LauncherKind::kSsh, kVersion), IsEmpty()) << "training on CPUs";
}

TEST(Preflight, AddsUpTheCoresToWhichSlurmBindsTheTasksOfAHost) {
  std::vector<HostReport> tasks;
  for (const char* cpu : {"0", "1", "2", "3"}) {
    tasks.push_back(Host("n1"));
    tasks.back().channel = "srun";
    tasks.back().report.set_cores(1);
    tasks.back().report.set_cpus(cpu);
  }
  EXPECT_THAT(JudgeHosts(tasks, LauncherKind::kSrun, kVersion), IsEmpty());
  EXPECT_THAT(HostsText(tasks), HasSubstr("cores: 4"));
  for (HostReport& task : tasks) task.report.set_cpus("0");
  EXPECT_THAT(Only(tasks, LauncherKind::kSrun).text, HasSubstr("4 ranks share 1 core"));
}

TEST(Preflight, TellsSlurmsUsersTheFlag) {
  auto hosts = Three();
  for (HostReport& host : hosts) host.channel = "srun";
  hosts[2].report.set_visible_gpus(1);
  EXPECT_THAT(Only(hosts, LauncherKind::kSrun).text,
              AllOf(HasSubstr("host n3"), HasSubstr("--gpu-bind=none")));
}

TEST(Preflight, SeesAFolderThatIsNotShared) {
  auto hosts = Three();
  hosts[1].report.set_marker_missing(true);
  hosts[2].report.set_marker_missing(true);
  EXPECT_THAT(Only(hosts).text, HasSubstr("hosts n2, n3 have a working directory"));
}

TEST(Preflight, TellsProgramsTheSame) {
  auto hosts = Three();
  hosts[1].report.set_cores(1);
  const auto findings = JudgeHosts(hosts, LauncherKind::kSsh, kVersion);
  const auto json = nlohmann::json::parse(FindingsJson(hosts, findings));
  EXPECT_EQ(json["hosts"].size(), 3u);
  EXPECT_EQ(json["hosts"][1]["cores"], 1);
  EXPECT_EQ(json["findings"][0]["check"], "cores");
  EXPECT_EQ(json["findings"][0]["host"], "n2");
  EXPECT_EQ(HostsText(hosts).substr(0, 18), "3 hosts, 12 ranks:");
}

}  // namespace
}  // namespace coordd
