#include "client/coordrun/process/stream_splitter.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/coordrun/process/line_splitter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_time.h"

namespace coordd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

absl::Time After(int64_t milliseconds) { return kStart + absl::Milliseconds(milliseconds); }

class StreamSplitterTest : public ::testing::Test {
 protected:
  void Feed(const std::string& bytes, absl::Time now = kStart) {
    fed_ += bytes;
    splitter_.Feed(bytes, now, Collect());
  }
  void Tick(absl::Time now) { splitter_.Tick(now, Collect()); }
  void Finish() { splitter_.Finish(Collect()); }
  // What has come since the last call.
  std::vector<std::pair<std::string, PieceEnd>> Taken() { return std::exchange(pieces_, {}); }

  StreamSplitter splitter_;
  std::string fed_, passed_on_;

 private:
  StreamSplitter::Emit Collect() {
    return [this](const OutputPiece& piece) {
      pieces_.emplace_back(piece.text, piece.end);
      absl::StrAppend(&passed_on_, piece.text, BytesOf(piece.end));
    };
  }
  std::vector<std::pair<std::string, PieceEnd>> pieces_;
};

TEST_F(StreamSplitterTest, PassesLinesOnWhenTheyAreWhole) {
  Feed("first\nsec");
  EXPECT_THAT(Taken(), ElementsAre(Pair("first", PieceEnd::kNewline)));
  Feed("ond\r\n\n");
  EXPECT_THAT(Taken(),
              ElementsAre(Pair("second", PieceEnd::kReturnNewline), Pair("", PieceEnd::kNewline)));
  EXPECT_EQ(splitter_.NextDeadline(), absl::InfiniteFuture());
}

TEST_F(StreamSplitterTest, PassesTheStatesOfABarOnAtTheirReturns) {
  Feed("10%\r20%\r30");
  EXPECT_THAT(Taken(), ElementsAre(Pair("10%", PieceEnd::kReturn), Pair("20%", PieceEnd::kReturn)));
  Feed("%\r");
  EXPECT_THAT(Taken(), ElementsAre(Pair("30%", PieceEnd::kReturn)));
  Feed("\n");
  EXPECT_THAT(Taken(), ElementsAre(Pair("", PieceEnd::kNewline)));
}

TEST_F(StreamSplitterTest, PassesAPromptOnWhenItHasBeenStill) {
  Feed("(Pdb)", After(0));
  Feed(" ", After(50));
  EXPECT_EQ(splitter_.NextDeadline(), After(150));
  Tick(After(149));
  EXPECT_THAT(Taken(), IsEmpty());
  Tick(After(150));
  EXPECT_THAT(Taken(), ElementsAre(Pair("(Pdb) ", PieceEnd::kNone)));
  Tick(After(1000));
  EXPECT_THAT(Taken(), IsEmpty());
}

TEST_F(StreamSplitterTest, PassesDotsOnThatNeverAreStill) {
  for (int64_t at = 0; at <= 1000; at += 90) Feed(".", After(at));
  EXPECT_EQ(splitter_.NextDeadline(), After(1000));
  Tick(After(1000));
  EXPECT_THAT(Taken(), ElementsAre(Pair("............", PieceEnd::kNone)));
}

TEST_F(StreamSplitterTest, KeepsEveryByteInOrder) {
  const std::string longer(kMaxLineBytes + 10, 'x');
  for (const std::string& part : {std::string("a\r"), std::string("\nb\rc\r\n"), longer,
                                  longer + "\r", std::string("\r\n\r\r\n"), std::string("end")}) {
    Feed(part);
  }
  Tick(After(2000));
  Feed("\nlast");
  Finish();
  Finish();
  EXPECT_EQ(passed_on_, fed_);
}

TEST(TailLines, KeepsTheLastStateOfABarAndPutsPiecesTogether) {
  TailLines tail(2);
  const auto add = [&tail](const char* text, PieceEnd end) { tail.Add(OutputPiece{text, end}); };
  add("one", PieceEnd::kNewline);
  add("", PieceEnd::kReturn);
  add(" 10%", PieceEnd::kNone);
  EXPECT_THAT(tail.lines(), ElementsAre("one", " 10%"));
  add("", PieceEnd::kReturn);
  add(" 20%", PieceEnd::kReturn);
  add("", PieceEnd::kNewline);
  EXPECT_THAT(tail.lines(), ElementsAre("one", " 20%"));
  add("Error: ", PieceEnd::kNone);
  add("bad", PieceEnd::kNewline);
  EXPECT_THAT(tail.lines(), ElementsAre(" 20%", "Error: bad"));
}

}  // namespace
}  // namespace coordd
