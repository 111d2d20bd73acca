#include "client/coordrun/plan/shared_screen.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace coordd {
namespace {

constexpr char kErased[] = "\r\033[K";

// Rank r is source r with the prefix "[r] ".
std::string Add(SharedScreen& screen, int32_t rank, const char* text, PieceEnd end) {
  return screen.Add(rank, absl::StrCat("[", rank, "] "), {text, end});
}

TEST(SharedScreen, WholeLinesStandBehindTheirPrefixes) {
  SharedScreen screen(/*terminal=*/false);
  EXPECT_EQ(Add(screen, 0, "a", PieceEnd::kNewline), "[0] a\n");
  EXPECT_EQ(Add(screen, 1, "", PieceEnd::kNewline), "[1] \n");
  EXPECT_EQ(Add(screen, 1, "b", PieceEnd::kReturnNewline), "[1] b\n");
  EXPECT_EQ(screen.Finish(), "");
}

TEST(SharedScreen, ALineThatComesInPiecesHasOnePrefix) {
  SharedScreen screen(false);
  EXPECT_EQ(Add(screen, 0, "(Pdb) ", PieceEnd::kNone), "[0] (Pdb) ");
  EXPECT_EQ(Add(screen, 0, "next", PieceEnd::kNone), "next");
  EXPECT_EQ(Add(screen, 0, "", PieceEnd::kNewline), "\n");
}

TEST(SharedScreen, WhoeverElseHasSomethingToSayBeginsALineOfItsOwn) {
  SharedScreen screen(false);
  EXPECT_EQ(Add(screen, 0, "name: ", PieceEnd::kNone), "[0] name: ");
  EXPECT_EQ(Add(screen, 1, "hello", PieceEnd::kNewline), "\n[1] hello\n");
  EXPECT_EQ(Add(screen, 0, "", PieceEnd::kNewline), "") << "its line has ended";
  EXPECT_EQ(Add(screen, 0, "", PieceEnd::kNewline), "[0] \n");
  Add(screen, 0, "name: ", PieceEnd::kNone);
  EXPECT_EQ(screen.AddLine("coordrun: the end"), "\ncoordrun: the end\n");
}

TEST(SharedScreen, ABarIsDrawnOverItself) {
  SharedScreen screen(false);
  EXPECT_EQ(Add(screen, 0, "10%", PieceEnd::kReturn), "[0] 10%\r");
  EXPECT_EQ(Add(screen, 0, "20%", PieceEnd::kReturn), "[0] 20%\r");
  EXPECT_EQ(Add(screen, 0, "", PieceEnd::kNewline), "\n");
  // With the return in front, as tqdm has it.
  EXPECT_EQ(Add(screen, 0, "", PieceEnd::kReturn), "");
  EXPECT_EQ(Add(screen, 0, "30%", PieceEnd::kNone), "[0] 30%");
  EXPECT_EQ(Add(screen, 0, "", PieceEnd::kReturn), "\r");
  EXPECT_EQ(Add(screen, 0, "40%", PieceEnd::kNone), "[0] 40%");
  EXPECT_EQ(screen.Finish(), "\n");
  EXPECT_EQ(screen.Finish(), "");
}

TEST(SharedScreen, OnATerminalLinesStandAboveTheBar) {
  SharedScreen screen(/*terminal=*/true);
  EXPECT_EQ(Add(screen, 0, "10%", PieceEnd::kReturn), "[0] 10%\r");
  EXPECT_EQ(Add(screen, 1, "hello", PieceEnd::kNewline),
            absl::StrCat(kErased, "[1] hello\n[0] 10%\r"));
  EXPECT_EQ(Add(screen, 0, "20%", PieceEnd::kReturn), "[0] 20%\r");
  EXPECT_EQ(screen.AddLine("coordrun: rank 2 was lost"),
            absl::StrCat(kErased, "coordrun: rank 2 was lost\n[0] 20%\r"));
  EXPECT_EQ(Add(screen, 0, "", PieceEnd::kNewline), "\n");
}

TEST(SharedScreen, OfSeveralBarsOneIsSeenAndTheLastStateOfEachStays) {
  SharedScreen screen(true);
  Add(screen, 0, "10%", PieceEnd::kReturn);
  EXPECT_EQ(Add(screen, 1, "11%", PieceEnd::kReturn), absl::StrCat(kErased, "[1] 11%\r"));
  EXPECT_EQ(Add(screen, 0, "100%", PieceEnd::kReturn), absl::StrCat(kErased, "[0] 100%\r"));
  EXPECT_EQ(Add(screen, 1, "50%", PieceEnd::kReturn), absl::StrCat(kErased, "[1] 50%\r"));
  EXPECT_EQ(Add(screen, 0, "", PieceEnd::kNewline), absl::StrCat(kErased, "[0] 100%\n[1] 50%\r"));
  EXPECT_EQ(Add(screen, 1, "", PieceEnd::kNewline), "\n");
}

TEST(SharedScreen, InAFileEveryWholeLineBeginsAtTheStartOfOne) {
  SharedScreen screen(false);
  Add(screen, 0, "10%", PieceEnd::kReturn);
  EXPECT_EQ(Add(screen, 1, "11%", PieceEnd::kReturn), "[1] 11%\r");
  EXPECT_EQ(Add(screen, 2, "hello", PieceEnd::kNewline), "\n[2] hello\n");
  EXPECT_EQ(Add(screen, 1, "", PieceEnd::kNewline), "");
  EXPECT_EQ(Add(screen, 0, "", PieceEnd::kNewline), "[0] 10%\n");
}

}  // namespace
}  // namespace coordd
