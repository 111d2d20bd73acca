#include "server/service/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/metrics/server_metrics.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::shared_ptr<const Caller> Olga() {
  return std::make_shared<const Caller>(
      Caller{.identity = {Role::kOperator, "olga"}, .peer = "ipv4:10.0.0.7:4711"});
}

AuditEntry Eviction(const std::string& job) {
  return {.call = Call::kDismiss, .caller = Olga(), .job = job, .what = "evict rank 1"};
}

AuditEntry RefusedCall() {
  return {.call = Call::kGetState,
          .caller =
              std::make_shared<const Caller>(Caller{.identity = {Role::kWorker, "*"}, .peer = ""}),
          .job = "train",
          .outcome = absl::PermissionDeniedError("no")};
}

AuditEntry RefusedCallOf(const std::string& name) {
  AuditEntry entry = RefusedCall();
  entry.caller =
      std::make_shared<const Caller>(Caller{.identity = {Role::kWorker, name}, .peer = ""});
  return entry;
}

// As of a disk that has room for files of so many bytes.
class RoomFor {
 public:
  explicit RoomFor(size_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~RoomFor() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_ = {};
};

class AuditLogTest : public testing::Test {
 protected:
  std::unique_ptr<AuditLog> Opened(int64_t bytes_max = int64_t{16} << 20, int files_max = 8) {
    auto log = std::make_unique<AuditLog>(metrics_, clock_);
    EXPECT_THAT(log->Open({.file = file_, .bytes_max = bytes_max, .files_max = files_max}), IsOk());
    return log;
  }
  std::vector<std::string> LinesOf(const std::string& path) {
    return absl::StrSplit(FileText(path), '\n', absl::SkipEmpty());
  }
  // What it does not have, as its thread counts it.
  void AwaitLost(int entries) {
    const std::string count =
        absl::StrCat(R"(coordd_audit_entries_lost_total{reason="not_written"} )", entries, "\n");
    while (metrics_.Text().find(count) == std::string::npos) std::this_thread::yield();
  }
  void ExpectJson(const std::vector<std::string>& lines) {
    for (const std::string& line : lines)
      EXPECT_TRUE(nlohmann::json::parse(line, nullptr, false).is_object()) << line;
  }
  bool IsThere(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

  const TempDirectory directory_;
  const std::string file_ = directory_ / "audit.log";
  FakeClock clock_;
  prometheus::Registry registry_;
  ServerMetrics metrics_{registry_, absl::FromUnixSeconds(1)};
};

TEST_F(AuditLogTest, SaysWhoHasDoneWhatToWhich) {
  const std::string line = AuditLine(Eviction("train"), absl::FromUnixMillis(1'700'000'000'123));
  EXPECT_EQ(
      line,
      R"({"time":"2023-11-14T22:13:20.123Z","call":"Dismiss","role":"operator","name":"olga",)"
      R"("peer":"ipv4:10.0.0.7:4711","job":"train","what":"evict rank 1","code":"OK","message":""})");
}

TEST_F(AuditLogTest, IsALineWhateverIsInIt) {
  AuditEntry entry = Eviction("train\n\x1b[31m\xff");
  entry.what = std::string(1 << 20, 'x');
  const std::string line = AuditLine(entry, absl::UnixEpoch());
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  EXPECT_LT(line.size(), 4096u);
  EXPECT_TRUE(nlohmann::json::parse(line, nullptr, false).is_object());
}

TEST_F(AuditLogTest, IsForItsOwnerAloneAndGoesOnWhereItWas) {
  Opened()->Note(Eviction("a"));
  struct stat found = {};
  ASSERT_EQ(stat(file_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  Opened()->Note(Eviction("b"));
  EXPECT_THAT(LinesOf(file_), ElementsAre(HasSubstr("\"a\""), HasSubstr("\"b\"")));
}

TEST_F(AuditLogTest, CannotBeFlushedByRefusals) {
  auto log = Opened(/*bytes_max=*/16384, /*files_max=*/2);
  log->Note(Eviction("train"));
  for (int i = 0; i < 100'000; ++i) {
    if (i % 100 == 0) clock_.Advance(absl::Milliseconds(100));
    log->Note(RefusedCall());
  }
  log->Stop();
  const std::vector<std::string> lines = LinesOf(file_);
  EXPECT_THAT(lines.front(), HasSubstr("evict rank 1"));
  EXPECT_LE(lines.size(), 1u + LogLimit::kBurst);
  EXPECT_FALSE(IsThere(file_ + ".1"));
  EXPECT_THAT(metrics_.Text(),
              HasSubstr(R"(coordd_calls_denied_total{call="GetState",role="worker"} 100000)"));
}

TEST_F(AuditLogTest, SaysHowManyRefusalsItHasLeftOut) {
  auto log = Opened();
  for (int i = 0; i < LogLimit::kBurst + 7; ++i) log->Note(RefusedCall());
  clock_.Advance(AuditLog::kFailedEvery);
  log->Note(RefusedCall());
  log->Stop();
  EXPECT_THAT(LinesOf(file_).back(), HasSubstr("7 more of this kind"));
}

TEST_F(AuditLogTest, OneNamesFloodHidesNothingOfAnothers) {
  auto log = Opened();
  for (int i = 0; i < 1000; ++i) log->Note(RefusedCallOf("flood"));
  log->Note(RefusedCallOf("other"));
  AuditEntry begun = RefusedCallOf("flood");
  begun.call = Call::kJoin;
  begun.outcome = absl::OkStatus();
  for (int i = 0; i < 1000; ++i) log->Note(begun);
  begun.caller = RefusedCallOf("other").caller;
  log->Note(begun);
  log->Stop();
  const std::vector<std::string> lines = LinesOf(file_);
  ASSERT_EQ(lines.size(), 2u * (LogLimit::kBurst + 1));
  EXPECT_THAT(lines[LogLimit::kBurst], HasSubstr(R"("name":"other")"));
  EXPECT_THAT(lines.back(), HasSubstr(R"("name":"other")"));
}

TEST_F(AuditLogTest, SharesALimitAmongTheNamesThatAreTooMany) {
  auto log = Opened();
  for (size_t i = 0; i < AuditLog::kOwnLimits; ++i) log->Note(RefusedCallOf(absl::StrCat("n", i)));
  for (int i = 0; i < 1000; ++i) log->Note(RefusedCallOf(absl::StrCat("more", i)));
  clock_.Advance(LogLimit::kBurst * AuditLog::kFailedEvery);
  // Of those that had no limit of their own for this long the places are free again.
  for (int i = 0; i < 1000; ++i) log->Note(RefusedCallOf("flood"));
  log->Note(RefusedCallOf("late"));
  log->Stop();
  const std::vector<std::string> lines = LinesOf(file_);
  EXPECT_EQ(lines.size(), AuditLog::kOwnLimits + 2 * LogLimit::kBurst + 1);
  EXPECT_THAT(lines.back(), HasSubstr(R"("name":"late")"));
}

TEST_F(AuditLogTest, CompletesTheLineThatHadNoRoomAndSaysHowManyAreMissing) {
  auto log = Opened();
  const std::string line = AuditLine(Eviction("job 0"), clock_.Now());
  {
    const RoomFor room(line.size() * 5 / 2);
    for (int i = 0; i < 7; ++i) log->Note(Eviction(absl::StrCat("job ", i)));
    AwaitLost(4);
    log->Note(Eviction("job 7"));
    AwaitLost(5);
    EXPECT_EQ(FileText(file_).size(), line.size() * 5 / 2);
  }
  // Nobody has to do anything more for it to be told.
  while (FileText(file_).find("no room") == std::string::npos) {
    clock_.Advance(AuditLog::kTriedEvery);
    std::this_thread::yield();
  }
  log->Note(Eviction("job 8"));
  log->Stop();
  const std::vector<std::string> lines = LinesOf(file_);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("job 0"), HasSubstr("job 1"), HasSubstr("job 2"),
                                 HasSubstr("\"5 entries had no room\""), HasSubstr("job 8")));
  ExpectJson(lines);
}

TEST_F(AuditLogTest, TellsAtItsEndWhatIsMissing) {
  auto log = Opened();
  {
    const RoomFor room(0);
    log->Note(Eviction("a"));
    AwaitLost(1);
  }
  log->Stop();
  EXPECT_THAT(LinesOf(file_), ElementsAre(HasSubstr("\"1 entry had no room\"")));
}

TEST_F(AuditLogTest, EndsALineThatAnotherHasLeftUnended) {
  std::ofstream(file_) << R"({"time":"2023)";
  Opened()->Note(Eviction("train"));
  EXPECT_THAT(LinesOf(file_), ElementsAre(R"({"time":"2023)", HasSubstr("train")));
}

TEST_F(AuditLogTest, KeepsSoManyFilesOfSoManyBytes) {
  for (int i = 0; i < 50; ++i) Opened(/*bytes_max=*/1000, /*files_max=*/3)->Note(Eviction("job"));
  for (const char* ending : {"", ".1", ".2", ".3"}) {
    EXPECT_TRUE(IsThere(file_ + ending)) << ending;
    EXPECT_LE(FileText(file_ + ending).size(), 1000u) << ending;
  }
  EXPECT_FALSE(IsThere(file_ + ".4"));
}

TEST_F(AuditLogTest, BeginsAnotherFileWhereItsOwnWasMovedAway) {
  auto log = Opened();
  ASSERT_EQ(rename(file_.c_str(), (file_ + ".moved").c_str()), 0);
  log->Note(Eviction("train"));
  log->Stop();
  EXPECT_THAT(LinesOf(file_), ElementsAre(HasSubstr("train")));
}

TEST_F(AuditLogTest, IsNotWrittenThroughALinkOrIntoADirectory) {
  ASSERT_EQ(symlink((directory_ / "target").c_str(), file_.c_str()), 0);
  AuditLog log(metrics_, clock_);
  EXPECT_EQ(log.Open({.file = file_}).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(IsThere(directory_ / "target"));
  const absl::Status status = log.Open({.file = directory_.path()});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory_.path()));
}

TEST_F(AuditLogTest, CountsRefusalsAlsoWithoutAFile) {
  AuditLog log(metrics_, clock_);
  ASSERT_THAT(log.Open({}), IsOk());
  log.Note(RefusedCall());
  log.Note(Eviction("train"));
  EXPECT_THAT(metrics_.Text(), HasSubstr("coordd_calls_denied_total"));
}

}  // namespace
}  // namespace coordd
