#include "common/launch/rendezvous_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RendezvousRecord Record() {
  return {.instance = "slurm 4711.0",
          .addresses = {{"10.0.0.1", 20001}, {"fd00::1", 20001}},
          .http = "127.0.0.1:8080",
          .token_file = "/run/token",
          .tls = {.cert = "/run/worker.crt", .key = "/run/worker.key", .ca = "/run/ca.crt"},
          .pid = 4711,
          .host = "n1"};
}

TEST(RendezvousFile, HoldsWhatWasWritten) {
  TempDirectory directory;
  const std::string path = directory / "coordd.json";
  ASSERT_THAT(WriteRendezvousFile(path, Record()), IsOk());
  struct stat found = {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  const auto record = ReadRendezvousFile(path);
  ASSERT_THAT(record, IsOk());
  EXPECT_EQ(record->instance, "slurm 4711.0");
  EXPECT_THAT(record->addresses,
              ElementsAre(HostPort{"10.0.0.1", 20001}, HostPort{"fd00::1", 20001}));
  EXPECT_EQ(record->tls.key, "/run/worker.key");
  EXPECT_EQ(record->token_file, "/run/token");
  EXPECT_EQ(record->pid, 4711);
}

TEST(RendezvousFile, TellsAbsentFromBroken) {
  TempDirectory directory;
  EXPECT_THAT(ReadRendezvousFile(directory / "none"),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
  EXPECT_THAT(ReadRendezvousFile(directory / "no/where"),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
  for (const char* text : {"", "{", "[]", "{}", "{\"addresses\": 1}", "{\"addresses\": [\"x\"]}"}) {
    std::ofstream(directory / "broken") << text;
    EXPECT_THAT(ReadRendezvousFile(directory / "broken"),
                StatusIs(absl::StatusCode::kInvalidArgument, testing::_))
        << text;
  }
}

TEST(RendezvousFile, IsNotFollowedThroughALink) {
  TempDirectory directory;
  ASSERT_THAT(WriteRendezvousFile(directory / "real", Record()), IsOk());
  std::filesystem::create_symlink(directory / "real", directory / "link");
  EXPECT_FALSE(ReadRendezvousFile(directory / "link").ok());
}

TEST(MakePrivateDirectories, MakesWhatIsMissing) {
  TempDirectory directory;
  ASSERT_THAT(MakePrivateDirectories(directory / "a/b/c"), IsOk());
  struct stat found = {};
  ASSERT_EQ(stat((directory / "a/b/c").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
  EXPECT_THAT(MakePrivateDirectories(directory / "a/b/c"), IsOk());
}

TEST(MakePrivateDirectories, RefusesWhatOthersMayWriteTo) {
  TempDirectory directory;
  const std::string path = directory / "open";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  EXPECT_THAT(MakePrivateDirectories(path),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("mode 777")));
  std::ofstream(directory / "file") << "x";
  EXPECT_FALSE(MakePrivateDirectories(directory / "file").ok());
  EXPECT_FALSE(MakePrivateDirectories(directory / "file/below").ok());
}

TEST(PruneRunDirectories, RemovesOldOnesOnly) {
  TempDirectory directory;
  std::filesystem::create_directories(directory / "run/inside");
  PruneRunDirectories(directory.path(), absl::FromTimeT(1000));
  EXPECT_TRUE(std::filesystem::exists(directory / "run"));
  PruneRunDirectories(directory.path(), absl::InfiniteFuture());
  EXPECT_FALSE(std::filesystem::exists(directory / "run"));
  PruneRunDirectories(directory / "nowhere", absl::InfiniteFuture());
}

}  // namespace
}  // namespace coordd
