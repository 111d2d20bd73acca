#include "common/base/nearest_word.h"

#include <gtest/gtest.h>

namespace coordd {
namespace {

const std::vector<std::string> kFlags = {"listen", "http", "heartbeat-interval", "store", "np"};

TEST(NearestWord, BearsALetterThatIsMissingTooManyAnotherOneOrExchanged) {
  for (const char* word : {"lisen", "llisten", "lizten", "litsen"})
    EXPECT_EQ(NearestWord(word, kFlags), "listen") << word;
}

TEST(NearestWord, TakesABeginning) {
  EXPECT_EQ(NearestWord("heart", kFlags), "heartbeat-interval");
}

TEST(NearestWord, PrefersTheNearer) {
  EXPECT_EQ(NearestWord("stare", {"stage", "store", "stares"}), "stares");
  EXPECT_EQ(NearestWord("store", kFlags), "store");
}

TEST(NearestWord, IsNoneWhereNothingIsLikeIt) {
  EXPECT_EQ(NearestWord("verbose", kFlags), "");
  EXPECT_EQ(NearestWord("xy", kFlags), "");
  EXPECT_EQ(NearestWord("", kFlags), "");
  EXPECT_EQ(NearestWord("listen", {}), "");
  EXPECT_EQ(NearestWord(std::string(100000, 'a'), kFlags), "");
}

}  // namespace
}  // namespace coordd
