#include "server/service/http_access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <memory>
#include <string>

#include "common/base/watched_token.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_directory.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

class HttpTokensTest : public testing::Test {
 protected:
  HttpTokens TokensOf(const std::string& token) const {
    const std::string path = directory_ / "token";
    std::ofstream(path) << token << "\n";
    chmod(path.c_str(), 0600);
    return HttpTokens(*WatchedToken::Open("--http-token-file", path));
  }
  static void Guess(HttpTokens& tokens, const std::string& from, int tries) {
    for (int i = 0; i < tries; ++i) {
      EXPECT_THAT(tokens.Check(from, "guess", kStart),
                  StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("is not the token")));
    }
  }

  const TempDirectory directory_;
};

TEST_F(HttpTokensTest, WhoGuessesWaitsAndNobodyElseDoes) {
  HttpTokens tokens = TokensOf("password");
  Guess(tokens, "192.0.2.1", WrongTokens::kFree);
  for (const char* brought : {"guess", "password"}) {
    EXPECT_THAT(tokens.Check("192.0.2.1", brought, kStart),
                StatusIs(absl::StatusCode::kUnavailable,
                         HasSubstr("128 wrong tokens for all jobs came from this host")));
  }
  EXPECT_THAT(tokens.Check("192.0.2.2", "password", kStart), IsOk());
  EXPECT_THAT(tokens.Check("192.0.2.1", "password", kStart + WrongTokens::kFirst), IsOk());
}

TEST_F(HttpTokensTest, ATokenThatNobodyGuessesIsTakenWhateverOthersOfItsAddressDo) {
  const std::string token = "0123456789abcdef0123456789abcdef";
  HttpTokens tokens = TokensOf(token);
  Guess(tokens, "192.0.2.1", WrongTokens::kFree);
  EXPECT_THAT(tokens.Check("192.0.2.1", token, kStart), IsOk());
}

TEST_F(HttpTokensTest, WithoutATokenNoneIsRight) {
  HttpTokens tokens(nullptr);
  EXPECT_THAT(tokens.Check("192.0.2.1", "x", kStart),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("--http-token-file")));
}

}  // namespace
}  // namespace coordd
