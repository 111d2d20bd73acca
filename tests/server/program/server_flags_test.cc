#include "server/program/server_flags.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/owned_fd.h"
#include "common/base/utf8.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

absl::StatusOr<ServerFlags> Parse(std::vector<const char*> arguments) {
  static const TempDirectory* const runtime = new TempDirectory();
  arguments.insert(arguments.begin(), "coordd");
  return ParseServerFlags(static_cast<int>(arguments.size()), arguments.data(),
                          {{"XDG_RUNTIME_DIR", runtime->path()}});
}

TEST(ServerFlags, HaveTheDefaultsThatTheDocumentsName) {
  const auto flags = Parse({});
  ASSERT_THAT(flags, IsOk());
  EXPECT_EQ(flags->server.listen.ToString(), "127.0.0.1:29650");
  EXPECT_EQ(flags->server.http->ToString(), "127.0.0.1:29651");
  EXPECT_EQ(flags->server.decisions.lease, absl::Seconds(10));
  EXPECT_EQ(flags->log_level, LogLevel::kInfo);
  EXPECT_EQ(flags->ready_fd, -1);
  EXPECT_THAT(flags->server.connection_file, HasSubstr(absl::StrCat("coordd/", getpid(), ".json")));
}

TEST(ServerFlags, AreTaken) {
  const OwnedFd ready(open("/dev/null", O_WRONLY | O_CLOEXEC));
  const std::string number = absl::StrCat(ready.get());
  const auto flags = Parse({"--listen", "[::1]:0", "--http", "off", "--stall-abort", "1.5h",
                            "--lease=30", "--min-workers", "4", "--log-level", "debug",
                            "--ready-fd", number.c_str(), "--connection-file", "here.json"});
  ASSERT_THAT(flags, IsOk());
  EXPECT_EQ(flags->server.listen, (HostPort{"::1", 0}));
  EXPECT_FALSE(flags->server.http.has_value());
  EXPECT_EQ(flags->server.decisions.stall_abort, absl::Minutes(90));
  EXPECT_EQ(flags->server.decisions.lease, absl::Seconds(30));
  EXPECT_EQ(flags->server.decisions.min_workers, 4);
  EXPECT_EQ(flags->log_level, LogLevel::kDebug);
  EXPECT_EQ(flags->ready_fd, ready.get());
  EXPECT_EQ(flags->server.connection_file, "here.json");
}

TEST(ServerFlags, SayWhereTheStateIs) {
  const auto sqlite = Parse({"--store", "memory", "--store", "sqlite:/var/lib/coordd"});
  ASSERT_THAT(sqlite, IsOk());
  EXPECT_EQ(sqlite->server.store.kind, StatePlace::Kind::kSqlite);
  EXPECT_EQ(sqlite->server.store.directory, "/var/lib/coordd");
  const auto etcd = Parse({"--store=etcd:10.0.0.1:2379,[::1]:2380/lab7", "--cluster-id", "lab"});
  ASSERT_THAT(etcd, IsOk());
  EXPECT_EQ(etcd->server.store.kind, StatePlace::Kind::kEtcd);
  EXPECT_EQ(etcd->server.store.endpoints,
            (std::vector<HostPort>{{"10.0.0.1", 2379}, {"::1", 2380}}));
  EXPECT_EQ(etcd->server.store.prefix, "lab7/");
  EXPECT_EQ(etcd->server.state.expected_cluster_id, "lab");
  EXPECT_FALSE(etcd->standby);
  const auto standby = Parse({"--store-lease", "3s", "--standby", "--store", "etcd:a:2379"});
  ASSERT_THAT(standby, IsOk());
  EXPECT_TRUE(standby->standby);
  EXPECT_EQ(standby->server.store.lease, absl::Seconds(3));
}

TEST(ServerFlags, SayWhichNameAClusterMayHave) {
  for (const char* id : {"a\nowner b", "a\x1b[2J", "a\xc2\x9b", "a\u202e", " a", "a "}) {
    const auto flags = Parse({"--cluster-id", id});
    EXPECT_THAT(flags,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--cluster-id is \"")));
    EXPECT_EQ(PrintableText(flags.status().message()), flags.status().message());
  }
  EXPECT_THAT(Parse({"--cluster-id", std::string(129, 'a').c_str()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 128 bytes")));
  EXPECT_THAT(Parse({"--cluster-id", "Lab 7, é"}), IsOk());
}

TEST(ServerFlags, KeepStateByThePortUnlessThePortIsPickedAnew) {
  EXPECT_EQ(Parse({"--listen", "127.0.0.1:0"})->server.store.kind, StatePlace::Kind::kMemory);
  EXPECT_EQ(Parse({})->server.store.directory,
            absl::StrCat("/var/tmp/coordd-", geteuid(), "/29650"));
  const HostPort listen = {"127.0.0.1", 7};
  EXPECT_EQ(DefaultStatePlace(listen, {{"HOME", "/nowhere"}}).directory,
            "/nowhere/.local/state/coordd/7");
  EXPECT_EQ(
      DefaultStatePlace(listen, {{"HOME", "/nowhere"}, {"XDG_STATE_HOME", "/else"}}).directory,
      "/else/coordd/7");
  EXPECT_EQ(DefaultStatePlace(listen, {{"STATE_DIRECTORY", "/var/lib/coordd:/second"}}).directory,
            "/var/lib/coordd/7");
}

TEST(ServerFlags, SayWhatIsWrong) {
  const std::vector<std::pair<std::vector<const char*>, const char*>> cases = {
      {{"--listen", "nowhere"}, "nowhere"},
      {{"--store", "disk"}, "sqlite:DIRECTORY"},
      {{"--store", "memory", "--standby"}, "--standby needs"},
      {{"--store", "etcd:a:2379", "--store-lease", "1500ms"}, "--store-lease is 1.5s"},
      {{"--store", "sqlite:"}, "sqlite:DIRECTORY"},
      {{"--store", "etcd:here"}, "here"},
      {{"--http", "1"}, "--http"},
      {{"--lease", "soon"}, "soon"},
      {{"--lease", "nan"}, "nan"},
      {{"--min-workers", "many"}, "--min-workers"},
      {{"--min-workers", "-1"}, "min_workers"},
      {{"--log-level", "loud"}, "loud"},
      {{"--ready-fd", "1"}, "--ready-fd"},
      {{"--ready-fd", "99999"}, "'99999', expected a descriptor that is open"},
      {{"--listen", "0.0.0.0:0"}, "--insecure"},
      {{"--tls-cert", "a"}, "--tls-key"},
      {{"--nonsense"}, "nonsense"},
      {{"extra"}, "extra"}};
  for (const auto& [arguments, why] : cases) {
    EXPECT_THAT(Parse(arguments), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << arguments[0];
  }
}

TEST(ServerFlags, HelpTeaches) {
  const auto flags = Parse({"--help"});
  ASSERT_THAT(flags, IsOk());
  EXPECT_THAT(*flags->print, AllOf(HasSubstr("coordctl certs"), HasSubstr("Exit codes"),
                                   HasSubstr("127.0.0.1:29650")));
  // CLI11 2.4 writes defaults in brackets.
  EXPECT_THAT(*flags->print, AnyOf(HasSubstr("--stall-abort DURATION=5m"),
                                   HasSubstr("--stall-abort DURATION [5m]")));
}

TEST(ServerFlags, KnowTheirVersion) { EXPECT_EQ(*Parse({"--version"})->print, "coordd 0.1.0\n"); }

TEST(ServerFlags, AnEmptyConnectionFileMeansNone) {
  const auto flags = Parse({"--connection-file", ""});
  ASSERT_THAT(flags, IsOk());
  EXPECT_EQ(flags->server.connection_file, "");
}

}  // namespace
}  // namespace coordd
