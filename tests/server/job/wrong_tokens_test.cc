#include "server/job/wrong_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/start_time.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using testing::HasSubstr;

Caller From(const std::string& peer, const std::string& name = "alice") {
  return {.identity = {Role::kLauncher, name}, .peer = peer};
}

class WrongTokensTest : public testing::Test {
 protected:
  bool MayTry(const Caller& caller, const std::string& job = "train") {
    return tokens_.MayTry(caller, job, now_).ok();
  }
  void Guess(int count) {
    // From another port each time.
    for (int i = 0; i < count; ++i)
      tokens_.Note(From(absl::StrCat("ipv4:10.0.0.7:", i)), "train", now_);
  }

  WrongTokens tokens_;
  absl::Time now_ = kStart;
  const Caller guesser_ = From("ipv4:10.0.0.7:4711");
};

TEST_F(WrongTokensTest, SomeAreFree) {
  Guess(WrongTokens::kFree - 1);
  EXPECT_TRUE(MayTry(guesser_));
}

TEST_F(WrongTokensTest, ThenEachCostsMoreTimeUpToAMinute) {
  Guess(WrongTokens::kFree);
  const absl::Status wait = tokens_.MayTry(guesser_, "train", now_);
  EXPECT_EQ(wait.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(wait.message(), HasSubstr("128 wrong tokens for job train"));
  now_ += WrongTokens::kFirst;
  EXPECT_TRUE(MayTry(guesser_));
  Guess(1);
  now_ += WrongTokens::kFirst;
  EXPECT_FALSE(MayTry(guesser_));
  now_ += WrongTokens::kFirst;
  EXPECT_TRUE(MayTry(guesser_));
  Guess(100);
  now_ += WrongTokens::kLongest - absl::Milliseconds(1);
  EXPECT_FALSE(MayTry(guesser_));
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(MayTry(guesser_));
}

TEST_F(WrongTokensTest, NobodyElseWaitsNorHeElsewhere) {
  Guess(2 * WrongTokens::kFree);
  EXPECT_FALSE(MayTry(guesser_));
  EXPECT_TRUE(MayTry(guesser_, "another"));
  EXPECT_TRUE(MayTry(From("ipv4:10.0.0.8:4711")));
  EXPECT_TRUE(MayTry(From("ipv4:10.0.0.7:4711", "bob")));
}

TEST_F(WrongTokensTest, SaysWhichTokensNobodyGuesses) {
  EXPECT_TRUE(WrongTokens::IsHardToGuess("0123456789abcdef0123456789abcdef"));
  EXPECT_FALSE(WrongTokens::IsHardToGuess("0123456789abcdef0123456789abcde")) << "too short";
  EXPECT_FALSE(WrongTokens::IsHardToGuess("aaaaaaaaaaaaaaaaaaaaaaaabbbbcccc")) << "too much alike";
  EXPECT_FALSE(WrongTokens::IsHardToGuess(""));
}

TEST_F(WrongTokensTest, WhatItRemembersIsBounded) {
  Guess(2 * WrongTokens::kFree);
  for (size_t i = 0; i < WrongTokens::kMost - 1; ++i) {
    now_ += absl::Milliseconds(1);
    tokens_.Note(From("ipv4:10.0.0.9:1", absl::StrCat("mallory", i)), "train", now_);
  }
  EXPECT_FALSE(MayTry(guesser_));
  tokens_.Note(From("ipv4:10.0.0.9:1", "one-more"), "train", now_);
  EXPECT_TRUE(MayTry(guesser_)) << "whose last try is longest ago";
}

}  // namespace
}  // namespace coordd
