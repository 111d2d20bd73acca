#include "common/launch/connection_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/grpc/certs.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;

Connection MyConnection() {
  return {.listen = "127.0.0.1:29650",
          .http = "127.0.0.1:29651",
          .pid = getpid(),
          .version = "0.1.0",
          .tls = {"/certs/worker.crt", "/certs/worker.key", "/certs/ca.crt"}};
}

// The id of a process that is gone.
int DeadPid() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  return child;
}

TEST(ConnectionFile, GivesBackWhatWasWritten) {
  const TempDirectory directory;
  const std::string path = directory / "coordd.json";
  ASSERT_TRUE(WriteConnectionFile(path, MyConnection()).ok());
  const absl::StatusOr<Connection> read = ReadConnectionFile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->listen, "127.0.0.1:29650");
  EXPECT_EQ(read->http, "127.0.0.1:29651");
  EXPECT_EQ(read->pid, getpid());
  EXPECT_EQ(read->version, "0.1.0");
  EXPECT_EQ(read->tls.key, "/certs/worker.key");
  struct stat found = {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST(ConnectionFile, HoldsAbsolutePaths) {
  const TempDirectory directory;
  Connection connection = MyConnection();
  connection.tls = {.cert = "tls/worker.crt", .key = "./tls/worker.key", .ca = "/etc/ca.crt"};
  ASSERT_TRUE(WriteConnectionFile(directory / "relative.json", connection).ok());
  const absl::StatusOr<Connection> read = ReadConnectionFile(directory / "relative.json");
  ASSERT_TRUE(read.ok());
  const std::string here = std::filesystem::current_path().string();
  EXPECT_EQ(read->tls.cert, here + "/tls/worker.crt");
  EXPECT_EQ(read->tls.key, here + "/tls/worker.key");
  EXPECT_EQ(read->tls.ca, "/etc/ca.crt");
}

TEST(ConnectionFile, RefusesWhatIsNoConnection) {
  const TempDirectory directory;
  EXPECT_EQ(ReadConnectionFile(directory / "none").status().code(), absl::StatusCode::kNotFound);
  for (const char* text : {"", "{", "[]", "{}", R"({"listen":7})", "\xff\xfe"}) {
    std::ofstream(directory / "bad") << text;
    EXPECT_EQ(ReadConnectionFile(directory / "bad").status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
}

TEST(ConnectionFile, DoesNotFollowALink) {
  const TempDirectory directory;
  ASSERT_TRUE(WriteConnectionFile(directory / "real", MyConnection()).ok());
  ASSERT_EQ(symlink((directory / "real").c_str(), (directory / "link").c_str()), 0);
  EXPECT_FALSE(ReadConnectionFile(directory / "link").ok());
}

TEST(ConnectionDirectory, IsMadeForItsOwnerOnly) {
  const TempDirectory runtime;
  const auto directory = ConnectionDirectory({{"XDG_RUNTIME_DIR", runtime.path()}});
  ASSERT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(*directory, runtime / "coordd");
  struct stat found = {};
  ASSERT_EQ(stat(directory->c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700u);
}

TEST(ConnectionDirectory, RefusesOneThatOthersCanWrite) {
  const TempDirectory runtime;
  ASSERT_EQ(mkdir((runtime / "coordd").c_str(), 0700), 0);
  ASSERT_EQ(chmod((runtime / "coordd").c_str(), 0777), 0);
  const auto directory = ConnectionDirectory({{"XDG_RUNTIME_DIR", runtime.path()}});
  EXPECT_EQ(directory.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(directory.status().message()), HasSubstr("chmod 700"));
}

TEST(ConnectionDirectory, RefusesOneOfSomebodyElse) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a directory of somebody else";
  const TempDirectory runtime;
  ASSERT_EQ(mkdir((runtime / "coordd").c_str(), 0700), 0);
  ASSERT_EQ(chown((runtime / "coordd").c_str(), 65534, 65534), 0);
  EXPECT_EQ(ConnectionDirectory({{"XDG_RUNTIME_DIR", runtime.path()}}).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(LiveConnections, ForgetsTheDeadAndSkipsTheRest) {
  const TempDirectory directory;
  Connection dead = MyConnection();
  dead.pid = DeadPid();
  ASSERT_TRUE(WriteConnectionFile(directory / "alive.json", MyConnection()).ok());
  ASSERT_TRUE(WriteConnectionFile(directory / "dead.json", dead).ok());
  std::ofstream(directory / "garbage.json") << "{";
  std::ofstream(directory / "notes.txt") << "mine";
  absl::Status unusable;
  EXPECT_THAT(LiveConnections(directory.path(), &unusable),
              ElementsAre(Field(&Connection::pid, getpid())));
  EXPECT_THAT(unusable, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("garbage.json")));
  EXPECT_NE(access((directory / "dead.json").c_str(), F_OK), 0);
  EXPECT_EQ(access((directory / "notes.txt").c_str(), F_OK), 0);
}

TEST(ServiceConnections, AreThoseOfTheDirectorysOwner) {
  const TempDirectory directory;
  Connection dead = MyConnection();
  dead.pid = DeadPid();
  ASSERT_TRUE(WriteConnectionFile(directory / "alive.json", MyConnection()).ok());
  ASSERT_TRUE(WriteConnectionFile(directory / "dead.json", dead).ok());
  EXPECT_THAT(ServiceConnections(directory.path(), directory / "tls"),
              ElementsAre(Field(&Connection::pid, getpid())));
  EXPECT_EQ(access((directory / "dead.json").c_str(), F_OK), 0) << "another user's file stays";
}

TEST(ServiceConnections, AreGivenTheOperatorsCertificate) {
  const TempDirectory directory;
  CertOptions options;
  ASSERT_TRUE(MakeCertificates(directory / "tls", options).ok());
  Connection service = MyConnection();
  service.tls = {.cert = "", .key = "", .ca = "/run/credentials/ca.crt"};
  ASSERT_TRUE(WriteConnectionFile(directory / "alive.json", service).ok());
  const std::vector<Connection> found = ServiceConnections(directory.path(), directory / "tls");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].tls.cert, directory / "tls/operator.crt");
  EXPECT_EQ(found[0].tls.ca, directory / "tls/ca.crt");
}

TEST(ServiceConnections, AreNotReadWhereOthersCanWrite) {
  const TempDirectory directory;
  ASSERT_TRUE(WriteConnectionFile(directory / "alive.json", MyConnection()).ok());
  ASSERT_EQ(chmod(directory.path().c_str(), 0777), 0);
  EXPECT_TRUE(ServiceConnections(directory.path(), directory / "tls").empty());
  EXPECT_TRUE(ServiceConnections(directory / "none", directory / "tls").empty());
}

TEST(LiveConnections, AreNoneWithoutADirectory) {
  const TempDirectory directory;
  EXPECT_TRUE(LiveConnections(directory / "none").empty());
}

}  // namespace
}  // namespace coordd
