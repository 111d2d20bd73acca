#include "server/door/frame_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/support/status_matchers.h"

namespace coordd::frames {
namespace {

using testing::HasSubstr;

constexpr char kData = 0, kHeaders = 1, kPriority = 2, kReset = 3, kSettings = 4, kPing = 6;
constexpr char kWindowUpdate = 8, kContinuation = 9, kNobodys = 77;
constexpr char kAck = 1, kEndStream = 1, kEndHeaders = 4;

std::string Head(size_t size, char type, char flags, char stream) {
  return {static_cast<char>(size >> 16),
          static_cast<char>(size >> 8),
          static_cast<char>(size),
          type,
          flags,
          0,
          0,
          0,
          stream};
}
std::string Frame(char type, char flags, char stream, size_t size = 0) {
  return Head(size, type, flags, stream) + std::string(size, 'x');
}
std::string Times(int count, const std::string& one) {
  std::string all;
  for (int i = 0; i < count; ++i) all += one;
  return all;
}

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kHello = kPreface + Frame(kSettings, 0, 0, 18);
// As gRPC's clients make one: headers, a message, its end.
const std::string kCall = Frame(kHeaders, kEndHeaders, 1, 200) + Frame(kData, kEndStream, 1, 40);
const std::string kStream = Frame(kHeaders, kEndHeaders, 1, 200) + Frame(kData, 0, 1, 40) +
                            Frame(kData, 0, 1, 5) + Frame(kData, kEndStream, 1);

class FrameGuardTest : public testing::Test {
 protected:
  FrameGuardTest() { EXPECT_THAT(Take(kHello), IsOk()); }

  absl::Status Take(const std::string& bytes) { return guard_.Take(bytes, now_); }
  std::string Refusal(const std::string& bytes) { return std::string(Take(bytes).message()); }
  // How many of `frame` are taken at once.
  int MostOf(const std::string& frame) {
    int taken = 0;
    while (taken < 100000 && Take(frame).ok()) ++taken;
    return taken;
  }

  absl::Time now_ = absl::UnixEpoch();
  FrameGuard guard_{FrameBounds(), now_};
};

TEST_F(FrameGuardTest, TakesWhatClientsOfGrpcSend) {
  for (int i = 0; i < 20000; ++i) {
    ASSERT_THAT(Take(kCall), IsOk()) << i;
    ASSERT_THAT(Take(kStream), IsOk()) << i;
  }
  EXPECT_THAT(Take(Frame(kSettings, kAck, 0)), IsOk());
  EXPECT_THAT(Take(Frame(kPing, 0, 0, 8)), IsOk());
  EXPECT_THAT(Take(Frame(kNobodys, 0, 0, 8)), IsOk());
  EXPECT_THAT(Take(Times(1000, Frame(kReset, 0, 1, 4))), IsOk());
  EXPECT_THAT(Take(Times(10000, Frame(kData, 0, 1, 16384))), IsOk());
}

TEST_F(FrameGuardTest, TakesTheSameInPiecesOfAnySize) {
  const std::string all = kHello + kCall + kStream + Frame(kHeaders, 0, 3, 100) +
                          Frame(kContinuation, kEndHeaders, 3, 100) + kCall;
  for (size_t piece = 1; piece < 60; ++piece) {
    FrameGuard guard(FrameBounds(), now_);
    for (size_t at = 0; at < all.size(); at += piece)
      ASSERT_THAT(guard.Take(absl::string_view(all).substr(at, piece), now_), IsOk()) << piece;
    // It knows where it is.
    EXPECT_FALSE(guard.Take(Frame(kContinuation, 0, 3, 1), now_).ok());
  }
}

TEST_F(FrameGuardTest, WantsThePrefaceAndThenSettings) {
  FrameGuard other(FrameBounds(), now_), eager(FrameBounds(), now_);
  EXPECT_THAT(other.Take("GET / HTTP/1.1\r\nHost: x\r\n", now_).message(), HasSubstr("not HTTP/2"));
  EXPECT_THAT(eager.Take(kPreface + kCall, now_).message(), HasSubstr("before its settings"));
}

TEST_F(FrameGuardTest, TakesABlockOfHeadersUpToItsBounds) {
  EXPECT_THAT(Take(Frame(kHeaders, 0, 1, 16384) + Times(2, Frame(kContinuation, 0, 1, 16384)) +
                   Frame(kContinuation, kEndHeaders, 1, 16384)),
              IsOk());
  EXPECT_THAT(Take(Frame(kHeaders, 0, 3, 10) + Times(14, Frame(kContinuation, 0, 3, 10)) +
                   Frame(kContinuation, kEndHeaders, 3, 10)),
              IsOk());
}

TEST_F(FrameGuardTest, EndsABlockThatIsTooLargeWithItsFirstFrameTooMany) {
  ASSERT_THAT(Take(Frame(kHeaders, 0, 1, 16384) + Times(3, Frame(kContinuation, 0, 1, 16384))),
              IsOk());
  // Its head is enough.
  EXPECT_THAT(Refusal(Head(1, kContinuation, 0, 1)), HasSubstr("more than 64 KiB"));
}

TEST_F(FrameGuardTest, EndsABlockOfTooManyFrames) {
  ASSERT_THAT(Take(Frame(kHeaders, 0, 1, 8) + Times(15, Frame(kContinuation, 0, 1, 0))), IsOk());
  EXPECT_THAT(Refusal(Frame(kContinuation, 0, 1, 0)), HasSubstr("more than 16 frames"));
}

TEST_F(FrameGuardTest, TakesNoOtherFrameWithinABlock) {
  ASSERT_THAT(Take(Frame(kHeaders, 0, 1, 8)), IsOk());
  EXPECT_THAT(Refusal(Frame(kPing, 0, 0, 8)), HasSubstr("within a block"));
}

TEST_F(FrameGuardTest, TakesNoContinuationOfAnotherCallsBlockOrOfNone) {
  EXPECT_THAT(Refusal(Frame(kContinuation, 0, 1, 8)), HasSubstr("of no block"));
  ASSERT_THAT(Take(Frame(kHeaders, 0, 1, 8)), IsOk());
  EXPECT_THAT(Refusal(Frame(kContinuation, 0, 3, 8)), HasSubstr("of no block"));
}

TEST_F(FrameGuardTest, TakesNoFrameAboveTheSizeThatWasAnnounced) {
  EXPECT_THAT(Refusal(Head(16385, kData, 0, 1)), HasSubstr("16385"));
}

TEST_F(FrameGuardTest, EndsFloodsOfEachKindAndSaysWhich) {
  const FrameBounds bounds;
  const auto burst = [&bounds](FrameKind kind) {
    return static_cast<int>(bounds.budgets[static_cast<size_t>(kind)].burst);
  };
  const struct {
    std::string frame, said;
    int most;
  } floods[] = {
      {Frame(kHeaders, kEndHeaders, 1, 9) + Frame(kReset, 0, 1, 4), "calls that are reset",
       burst(FrameKind::kCallWithoutMessage)},
      {Frame(kHeaders, kEndHeaders | kEndStream, 1, 9), "calls that are reset",
       burst(FrameKind::kCallWithoutMessage)},
      {Frame(kPing, 0, 0, 8), "PING", burst(FrameKind::kPing)},
      {Frame(kPing, kAck, 0, 8), "PING", burst(FrameKind::kPing)},
      {Frame(kPriority, 0, 1, 5), "PRIORITY", burst(FrameKind::kPriority)},
      {Frame(kData, 0, 1, 0), "DATA frames without data", burst(FrameKind::kEmptyData)},
      {Frame(kData, 0, 1, 4), "DATA frames without data", burst(FrameKind::kEmptyData)},
      {Frame(kData, kEndStream, 1, 0), "DATA frames without data", burst(FrameKind::kEmptyData)},
      {Frame(kWindowUpdate, 0, 0, 4), "WINDOW_UPDATE", burst(FrameKind::kWindowUpdate)},
      {Frame(kNobodys, 0, 0, 4), "mean nothing here", burst(FrameKind::kUnknown)},
  };
  for (const auto& flood : floods) {
    guard_ = FrameGuard(FrameBounds(), now_);
    ASSERT_THAT(Take(kHello), IsOk());
    EXPECT_EQ(MostOf(flood.frame), flood.most) << flood.said;
    EXPECT_THAT(Refusal(flood.frame), HasSubstr(flood.said));
  }
}

TEST_F(FrameGuardTest, CountsSettingsByHowManyAreInAFrame) {
  const int small = MostOf(Frame(kSettings, 0, 0, 6));
  guard_ = FrameGuard(FrameBounds(), now_);
  ASSERT_THAT(Take(kHello), IsOk());
  EXPECT_LT(MostOf(Frame(kSettings, 0, 0, 6000)), small / 50);
}

TEST_F(FrameGuardTest, GivesNewBudgetWithTime) {
  for (int second = 0; second < 1000; ++second) {
    ASSERT_THAT(Take(Times(10, Frame(kPing, 0, 0, 8)) + Times(10, Frame(kSettings, 0, 0)) +
                     Times(200, Frame(kReset, 0, 1, 4))),
                IsOk())
        << second;
    now_ += absl::Seconds(1);
  }
  now_ += absl::Hours(1000);
  EXPECT_EQ(MostOf(Frame(kPing, 0, 0, 8)), 200);  // no more than at once
}

TEST_F(FrameGuardTest, GivesNewBudgetForWhatTheClientHasToRead) {
  for (int i = 0; i < 1000; ++i) {
    guard_.Answered(64 << 10);
    ASSERT_THAT(Take(Times(2000, Frame(kWindowUpdate, 0, 1, 4)) + Frame(kPing, 0, 0, 8)), IsOk());
  }
  MostOf(Frame(kReset, 0, 1, 4));
  guard_.Answered(uint64_t{1} << 40);
  EXPECT_FALSE(Take(Frame(kReset, 0, 1, 4)).ok());  // which answers nothing
}

TEST_F(FrameGuardTest, GivesNothingForAClockThatGoesBack) {
  MostOf(Frame(kPing, 0, 0, 8));
  now_ -= absl::Hours(1);
  EXPECT_FALSE(Take(Frame(kPing, 0, 0, 8)).ok());
}

TEST_F(FrameGuardTest, EndsSoonWhateverIsSaid) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    guard_ = FrameGuard(FrameBounds(), now_);
    ASSERT_THAT(Take(kHello), IsOk());
    std::string noise(1 << 16, 0);
    for (char& one : noise) one = static_cast<char>(random());
    const absl::Status whole = Take(noise);
    // In single bytes it is the same.
    guard_ = FrameGuard(FrameBounds(), now_);
    ASSERT_THAT(Take(kHello), IsOk());
    absl::Status bytewise;
    for (size_t i = 0; i < noise.size() && bytewise.ok(); ++i) bytewise = Take(noise.substr(i, 1));
    EXPECT_EQ(whole, bytewise);
  }
}

}  // namespace
}  // namespace coordd::frames
