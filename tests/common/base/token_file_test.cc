#include "common/base/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

std::string Write(const TempDirectory& directory, const std::string& text, mode_t mode) {
  const std::string path = directory / "token";
  std::ofstream(path) << text;
  chmod(path.c_str(), mode);
  return path;
}

TEST(ReadTokenFile, TakesTheSecretWithoutItsLineEnd) {
  const TempDirectory directory;
  const std::string path = Write(directory, "  secret\n", 0600);
  const auto token = ReadTokenFile("COORDD_TOKEN_FILE", path);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(*token, "secret");
  EXPECT_TRUE(CheckTokenFile("COORDD_TOKEN_FILE", path).ok());
}

TEST(ReadTokenFile, RefusesOneThatOthersCanReach) {
  const TempDirectory directory;
  for (const mode_t mode : {0640, 0604, 0620}) {
    const std::string path = Write(directory, "secret", mode);
    const auto says =
        StatusIs(Code::kInvalidArgument,
                 AllOf(HasSubstr("--token-file names " + path), HasSubstr("expected 0600")));
    EXPECT_THAT(ReadTokenFile("--token-file", path).status(), says);
    EXPECT_THAT(CheckTokenFile("--token-file", path), says);
  }
}

TEST(ReadTokenFile, OfAPipeIntoWhichNobodyWritesSaysSo) {
  const TempDirectory directory;
  const std::string path = directory / "token";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(
      ReadTokenFile("--token-file", path, nullptr, absl::Milliseconds(1)).status(),
      StatusIs(Code::kInvalidArgument, HasSubstr("--token-file names " + path +
                                                 ", which is a pipe that did not end within 1ms")));
}

TEST(CheckTokenFile, RefusesWhatCannotBeReadTwice) {
  const TempDirectory directory;
  const std::string path = directory / "token";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(CheckTokenFile("--token-file", path),
              StatusIs(Code::kInvalidArgument,
                       HasSubstr("which is a pipe; expected a file, since it is read several")));
  EXPECT_THAT(CheckTokenFile("--token-file", "/dev/zero"),
              StatusIs(Code::kInvalidArgument, HasSubstr("which is a device; expected a file")));
}

TEST(ReadTokenFile, SaysWhenThereIsNone) {
  const auto says = StatusIs(Code::kInvalidArgument,
                             HasSubstr("--token-file names /nowhere/t, which cannot be read"));
  EXPECT_THAT(ReadTokenFile("--token-file", "/nowhere/t").status(), says);
  EXPECT_THAT(CheckTokenFile("--token-file", "/nowhere/t"), says);
}

}  // namespace
}  // namespace coordd
