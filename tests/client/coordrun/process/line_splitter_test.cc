#include "client/coordrun/process/line_splitter.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class LineSplitterTest : public ::testing::Test {
 protected:
  void Feed(const std::string& bytes) { splitter_.Feed(bytes, Collect()); }
  void Finish() { splitter_.Finish(Collect()); }
  std::vector<std::string> lines_;

 private:
  LineSplitter::Emit Collect() {
    return [this](absl::string_view line) { lines_.emplace_back(line); };
  }
  LineSplitter splitter_;
};

TEST_F(LineSplitterTest, PutsLinesTogetherFromPieces) {
  Feed("first\nsec");
  EXPECT_THAT(lines_, ElementsAre("first"));
  Feed("ond\n\nthird");
  EXPECT_THAT(lines_, ElementsAre("first", "second", ""));
  Finish();
  EXPECT_THAT(lines_, ElementsAre("first", "second", "", "third"));
}

TEST_F(LineSplitterTest, AnEndedStreamWithoutAPartialLineAddsNone) {
  Feed("whole\n");
  Finish();
  Finish();
  EXPECT_THAT(lines_, ElementsAre("whole"));
}

TEST_F(LineSplitterTest, DropsTheCarriageReturnOfALineEndOnly) {
  Feed("a\r\nb\rc\n");
  Feed("d\r");
  Feed("\n");
  EXPECT_THAT(lines_, ElementsAre("a", "b\rc", "d"));
}

TEST_F(LineSplitterTest, KeepsBytesThatAreNoText) {
  Feed(std::string("a\0\xff\n", 4));
  EXPECT_THAT(lines_, ElementsAre(std::string("a\0\xff", 3)));
}

TEST_F(LineSplitterTest, PassesALineWithoutEndOnInPieces) {
  Feed(std::string(kMaxLineBytes - 1, 'x'));
  EXPECT_THAT(lines_, IsEmpty());
  Feed(std::string(kMaxLineBytes, 'x') + "y\n");
  ASSERT_THAT(lines_, SizeIs(2));
  EXPECT_THAT(lines_[0], SizeIs(kMaxLineBytes));
  EXPECT_EQ(lines_[0].size() + lines_[1].size(), 2 * kMaxLineBytes);
  EXPECT_EQ(lines_[1].back(), 'y');
}

TEST_F(LineSplitterTest, IsTheSameHoweverTheBytesAreCut) {
  const std::string text = "alpha\nbeta\n\ngamma delta\r\nend";
  for (size_t step = 1; step <= text.size(); ++step) {
    lines_.clear();
    for (size_t at = 0; at < text.size(); at += step) Feed(text.substr(at, step));
    Finish();
    EXPECT_THAT(lines_, ElementsAre("alpha", "beta", "", "gamma delta", "end")) << step;
  }
}

TEST(TailLines, KeepsTheLastOnes) {
  TailLines tail(2);
  for (const char* line : {"a", "b", "c"}) tail.Add(line);
  EXPECT_THAT(tail.lines(), ElementsAre("b", "c"));
}

TEST(TailLines, TellsWhatWasSaidSince) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  TailLines tail(3);
  tail.Add("of its start", start);
  tail.Add(OutputPiece{"bar 1%", PieceEnd::kReturn}, start);
  tail.Add(OutputPiece{"bar 2%", PieceEnd::kNewline}, start + absl::Seconds(5));
  tail.Add("at its end", start + absl::Seconds(9));
  EXPECT_THAT(tail.Since(start + absl::Seconds(1)), ElementsAre("bar 2%", "at its end"));
  EXPECT_THAT(tail.Since(start + absl::Seconds(9)), ElementsAre("at its end"));
  EXPECT_THAT(tail.Since(start), SizeIs(3));
  tail.Add("", start + absl::Seconds(20));
  EXPECT_THAT(tail.Since(start), SizeIs(3));
  EXPECT_THAT(tail.Since(start + absl::Seconds(20)), ElementsAre(""));
}

TEST(RankPrefix, IsAsWideAsTheLargestRank) {
  EXPECT_EQ(RankPrefix(3, 4, false), "[3] ");
  EXPECT_EQ(RankPrefix(3, 11, false), "[ 3] ");
  EXPECT_EQ(RankPrefix(10, 11, false), "[10] ");
  EXPECT_EQ(RankPrefix(0, 1, false), "[0] ");
}

TEST(RankPrefix, EndsItsColourBeforeTheLine) {
  const std::string prefix = RankPrefix(1, 2, true);
  EXPECT_EQ(prefix, "\033[33m[1] \033[0m");
  EXPECT_NE(prefix, RankPrefix(0, 2, true));
}

}  // namespace
}  // namespace coordd
