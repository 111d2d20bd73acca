#include "common/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "common/base/thread.h"

namespace coordd {
namespace {

using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

// Sends stderr to a temporary file while it lives.
class CapturedStderr {
 public:
  CapturedStderr() : file_(std::tmpfile()), saved_(dup(STDERR_FILENO)) {
    dup2(fileno(file_), STDERR_FILENO);
  }
  ~CapturedStderr() {
    Restore();
    std::fclose(file_);
  }
  CapturedStderr(const CapturedStderr&) = delete;
  CapturedStderr& operator=(const CapturedStderr&) = delete;

  // Lines without their ends. Stderr is itself again afterwards.
  std::vector<std::string> Lines() {
    Restore();
    std::string text;
    char buffer[4096];
    std::rewind(file_);
    for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), file_)) > 0;) text.append(buffer, n);
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

 private:
  void Restore() {
    if (saved_ < 0) return;
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    saved_ = -1;
  }

  std::FILE* const file_;
  int saved_;
};

TEST(Log, WritesProgramLevelTimePlaceAndText) {
  SetLogProgram("coordd");
  CapturedStderr captured;
  COORDD_LOG(kInfo, "worker ", 3, " joined");
  const std::vector<std::string> lines = captured.Lines();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], MatchesRegex("coordd I [0-9]+:[0-9]+:[0-9]+\\.[0-9]+ log_test.cc:[0-9]+\\] "
                                     "worker 3 joined"));
}

TEST(Log, LeavesOutWhatIsBelowTheLevelAndDoesNotEvaluateIt) {
  int evaluated = 0;
  CapturedStderr captured;
  SetLogLevel(LogLevel::kWarning);
  COORDD_LOG(kInfo, "number ", ++evaluated);
  COORDD_LOG(kError, "shown");
  SetLogLevel(LogLevel::kInfo);
  const std::vector<std::string> lines = captured.Lines();
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], EndsWith("] shown"));
  EXPECT_EQ(evaluated, 0);
}

TEST(Log, KeepsLinesWholeAmongThreads) {
  constexpr int kThreads = 4;
  constexpr int kLines = 100;
  CapturedStderr captured;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(StartThread("logger", [t] {
      const std::string text(200, static_cast<char>('a' + t));
      for (int i = 0; i < kLines; ++i) COORDD_LOG(kInfo, text);
    }));
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = captured.Lines();
  EXPECT_THAT(lines, SizeIs(kThreads * kLines));
  std::vector<std::string> broken;
  for (const std::string& line : lines) {
    const std::string text(200, line.back());
    if (!absl::StartsWith(line, "coordd I ") || !absl::EndsWith(line, "] " + text))
      broken.push_back(line);
  }
  EXPECT_THAT(broken, IsEmpty());
}

}  // namespace
}  // namespace coordd
