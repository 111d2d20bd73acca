#include "relay/relay_socket.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/owned_fd.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RelaySocketTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<RelaySocket>> Make(const std::string& path) {
    return RelaySocket::Make(
        path, [this](const std::string& made) { Bind(made); }, Clock::Real());
  }
  void Bind(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    listener_ = OwnedFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0)
      listen(listener_.get(), 1);
  }
  void ExpectRefused(const std::string& path, const std::string& why) {
    OwnedFd before = std::move(listener_);
    EXPECT_THAT(Make(path), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(why)));
    EXPECT_FALSE(listener_.valid());
    listener_ = std::move(before);
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_ / ""))
      names.push_back(entry.path().filename().string());
    return names;
  }

  const TempDirectory directory_;
  const std::string path_ = directory_ / "relay";
  OwnedFd listener_;
};

TEST_F(RelaySocketTest, IsThereUntilItsEndAndNothingElseIs) {
  auto socket = Make(path_);
  ASSERT_THAT(socket, IsOk());
  EXPECT_THAT(Names(), ElementsAre("relay"));
  socket->reset();
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(RelaySocketTest, TakesThePlaceOfADeadOneOnly) {
  Bind(path_);
  ExpectRefused(path_, "another relay or program listens there");
  listener_.Close();
  EXPECT_THAT(Make(path_), IsOk());
}

TEST_F(RelaySocketTest, AnswersForOneThatIsTooBusyToAccept) {
  Bind(path_);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  std::vector<OwnedFd> waiting;
  do {
    waiting.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  } while (connect(waiting.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
           0);
  ExpectRefused(path_, "another relay or program listens there");
}

TEST_F(RelaySocketTest, LeavesWhatIsNoSocketAloneAndSaysWhatItIs) {
  std::ofstream(directory_ / "file") << "mine";
  std::filesystem::create_directory(directory_ / "folder");
  std::filesystem::create_symlink(directory_ / "nowhere", directory_ / "link");
  ExpectRefused(directory_ / "file", "a file that is no socket is there already: remove it");
  ExpectRefused(directory_ / "folder", "a folder is there already");
  ExpectRefused(directory_ / "link", "a symbolic link is there already");
  EXPECT_THAT(Names(), testing::UnorderedElementsAre("file", "folder", "link"));
  ExpectRefused(directory_ / "none/relay", absl::StrCat("no file can be made in the folder ",
                                                        directory_ / "none", ": No such file"));
}

TEST_F(RelaySocketTest, WaitsForOneThatStartsAndTakesOverFromOneThatHasDied) {
  const std::string file = path_ + ".lock";
  OwnedFd other(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_THAT(Make(path_), IsOk());
  other = OwnedFd(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  listener_.Close();
  ExpectRefused(path_, absl::StrCat("another relay that starts there holds ", file, " locked"));
}

}  // namespace
}  // namespace coordd
