#include "common/base/named_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "common/base/owned_fd.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

class NamedFileTest : public testing::Test {
 protected:
  std::string Pipe() const {
    const std::string path = directory_ / "pipe";
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    return path;
  }

  const TempDirectory directory_;
};

TEST_F(NamedFileTest, ReadsAFileAndOneByteMoreThanItMayHave) {
  const std::string path = directory_ / "file";
  std::ofstream(path) << "12345";
  EXPECT_EQ(*ReadNamedFile(path, 5), "12345");
  EXPECT_EQ(ReadNamedFile(path, 3)->size(), 4u);
  EXPECT_EQ(ReadNamedFile("/dev/zero", 10)->size(), 11u);
}

TEST_F(NamedFileTest, ReadsWhatSomebodyWritesIntoAPipe) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const OwnedFd out(ends[0]);
  OwnedFd in(ends[1]);
  ASSERT_EQ(write(in.get(), "secret", 6), 6);
  in.Close();
  EXPECT_EQ(*ReadNamedFile("/dev/fd/" + std::to_string(out.get()), 100), "secret");
}

TEST_F(NamedFileTest, WaitsForNoPipeForEver) {
  const std::string pipe = Pipe();
  EXPECT_THAT(ReadNamedFile(pipe, 100, absl::Milliseconds(1)).status(),
              StatusIs(Code::kInvalidArgument,
                       HasSubstr("is a pipe that did not end within 1ms; expected a file")));
  EXPECT_THAT(OpenToWrite(pipe, O_CREAT | O_TRUNC, 0600).status(),
              StatusIs(Code::kFailedPrecondition, pipe + " is a pipe, expected a file"));
}

TEST_F(NamedFileTest, WritesToFilesAndDevicesOnly) {
  EXPECT_THAT(OpenToWrite(directory_ / "file", O_CREAT | O_TRUNC, 0600).status(), IsOk());
  EXPECT_THAT(OpenToWrite("/dev/null", O_CREAT | O_TRUNC, 0600).status(), IsOk());
  EXPECT_THAT(OpenToWrite(directory_.path(), O_CREAT, 0600).status(),
              StatusIs(Code::kFailedPrecondition, HasSubstr("is a folder, expected a file")));
  EXPECT_THAT(OpenToWrite(directory_ / "none/file", O_CREAT, 0600).status(),
              StatusIs(Code::kUnavailable, HasSubstr("cannot be written: No such file")));
}

TEST_F(NamedFileTest, SaysWhatIsInPlaceOfAFile) {
  const OwnedFd folder(open(directory_.path().c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(ExpectFile(folder.get(), "lock"),
              StatusIs(Code::kFailedPrecondition, "lock is a folder, expected a file"));
  EXPECT_THAT(ReadNamedFile(directory_.path(), 100).status(),
              StatusIs(Code::kInvalidArgument, "is a folder; expected a file"));
}

}  // namespace
}  // namespace coordd
