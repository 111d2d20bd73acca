#include "common/base/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

size_t EntriesIn(const std::string& directory) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

TEST(WriteFileAtomically, WritesWithTheModeAndLeavesNothingElse) {
  const TempDirectory directory;
  const std::string path = directory / "file";
  ASSERT_TRUE(WriteFileAtomically(path, "first", 0600).ok());
  ASSERT_TRUE(WriteFileAtomically(path, "second", 0644).ok());
  EXPECT_EQ(FileText(path), "second");
  struct stat found = {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0644u);
  EXPECT_EQ(EntriesIn(directory.path()), 1u);
}

TEST(WriteFileAtomically, ReplacesASymbolicLinkInsteadOfFollowingIt) {
  const TempDirectory directory;
  ASSERT_TRUE(WriteFileAtomically(directory / "victim", "untouched", 0600).ok());
  ASSERT_EQ(symlink((directory / "victim").c_str(), (directory / "link").c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(directory / "link", "new", 0600).ok());
  EXPECT_EQ(FileText(directory / "victim"), "untouched");
  EXPECT_EQ(FileText(directory / "link"), "new");
}

// As root one would take the place of /dev/null.
TEST(WriteFileAtomically, ReplacesNothingThatIsNoFile) {
  const TempDirectory directory;
  const std::string pipe = directory / "pipe", link = directory / "link";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(symlink("/dev/null", link.c_str()), 0);
  const std::pair<std::string, absl::string_view> cases[] = {{pipe, "a pipe"}, {link, "a device"}};
  for (const auto& [path, kind] : cases) {
    const absl::Status status = WriteFileAtomically(path, "x", 0600);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              absl::StrCat(path, " is ", kind, ", expected a file or a new name"));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(EntriesIn(directory.path()), 2u);
}

TEST(WriteFileAtomically, NamesTheFileThatItCannotWrite) {
  const TempDirectory directory;
  const std::string path = directory / "missing/file";
  const absl::Status status = WriteFileAtomically(path, "x", 0600);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(path));
}

TEST(WriteFileAtomically, LeavesNoTemporaryFileWhenTheRenameFails) {
  const TempDirectory directory;
  std::filesystem::create_directory(directory / "taken");
  EXPECT_FALSE(WriteFileAtomically(directory / "taken", "x", 0600).ok());
  EXPECT_EQ(EntriesIn(directory.path()), 1u);
}

}  // namespace
}  // namespace coordd
