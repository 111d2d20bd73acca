#include "common/base/own_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Code = absl::StatusCode;

void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(ReadOwnFile, ReadsAtMost64KiB) {
  const TempDirectory directory;
  Write(directory / "short", "text\n");
  EXPECT_EQ(*ReadOwnFile(directory / "short", "file"), "text\n");
  Write(directory / "long", std::string(100'000, 'x'));
  EXPECT_THAT(*ReadOwnFile(directory / "long", "file"), SizeIs(64 << 10));
}

TEST(ReadOwnFile, SaysWhichFileIsMissing) {
  EXPECT_THAT(
      ReadOwnFile("/nowhere/x.json", "connection file").status(),
      StatusIs(Code::kNotFound, HasSubstr("connection file /nowhere/x.json cannot be read")));
}

TEST(ReadOwnFile, FollowsNoLinkAndWaitsForNoPipe) {
  const TempDirectory directory;
  Write(directory / "file", "text");
  ASSERT_EQ(symlink((directory / "file").c_str(), (directory / "link").c_str()), 0);
  EXPECT_THAT(ReadOwnFile(directory / "link", "file").status(),
              StatusIs(Code::kUnavailable, HasSubstr("link")));
  ASSERT_EQ(mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(*ReadOwnFile(directory / "pipe", "file"), "");
}

TEST(ReadOwnFile, RefusesAnotherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const TempDirectory directory;
  Write(directory / "theirs", "text");
  ASSERT_EQ(chown((directory / "theirs").c_str(), 12345, 12345), 0);
  EXPECT_THAT(ReadOwnFile(directory / "theirs", "file").status(),
              StatusIs(Code::kFailedPrecondition,
                       AllOf(HasSubstr("belongs to user 12345"), HasSubstr("expected ours"))));
}

}  // namespace
}  // namespace coordd
