#include "common/base/watched_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

class WatchedTokenTest : public testing::Test {
 protected:
  void Write(const std::string& text) {
    std::ofstream(path_) << text;
    chmod(path_.c_str(), 0600);
  }
  std::shared_ptr<WatchedToken> Open() { return *WatchedToken::Open("--token-file", path_); }
  static bool Reload(const std::shared_ptr<WatchedToken>& token) {
    const absl::StatusOr<bool> is_new = token->Reload();
    EXPECT_THAT(is_new, IsOk());
    return is_new.ok() && *is_new;
  }

  const TempDirectory directory_;
  const std::string path_ = directory_ / "token";
};

TEST_F(WatchedTokenTest, HalfOfOneThatIsBeingWrittenDoesNotCount) {
  Write("old\n");
  const std::shared_ptr<WatchedToken> token = Open();
  Write("ne");
  EXPECT_FALSE(Reload(token));
  EXPECT_FALSE(token->Is("ne"));
  EXPECT_TRUE(token->Is("old"));
  Write("new\n");
  EXPECT_TRUE(Reload(token));
  EXPECT_TRUE(token->Is("new"));
}

TEST_F(WatchedTokenTest, OneWithoutALinesEndCountsOnceItWasFoundTwice) {
  Write("old");
  const std::shared_ptr<WatchedToken> token = Open();
  Write("new");
  EXPECT_FALSE(Reload(token));
  EXPECT_TRUE(Reload(token));
  EXPECT_TRUE(token->Is("new"));
  EXPECT_FALSE(Reload(token));
}

TEST_F(WatchedTokenTest, WhatHasGrownMeanwhileIsHalfAgain) {
  Write("old\n");
  const std::shared_ptr<WatchedToken> token = Open();
  for (const char* half : {"n", "ne", "new"}) {
    Write(half);
    EXPECT_FALSE(Reload(token)) << half;
  }
  EXPECT_TRUE(token->Is("old"));
}

TEST_F(WatchedTokenTest, OneThatNoHeaderCanCarryIsRefused) {
  const auto refused = [](const char* why) {
    return StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr(why));
  };
  Write("old\n");
  EXPECT_THAT(WatchedToken::Check("--token-file", path_), IsOk());
  const std::shared_ptr<WatchedToken> token = Open();
  for (const auto& [text, why] :
       {std::pair("of two\nlines\n", "which holds several lines; expected"),
        std::pair("bel\a\n", "which holds control characters; expected")}) {
    Write(text);
    EXPECT_THAT(WatchedToken::Check("--token-file", path_), refused(why));
    EXPECT_THAT(WatchedToken::Open("--token-file", path_), refused(why));
    EXPECT_THAT(token->Reload(), refused(why));
  }
  EXPECT_TRUE(token->Is("old"));
}

}  // namespace
}  // namespace coordd
