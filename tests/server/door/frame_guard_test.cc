#include "server/door/frame_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace coordd::frames {
namespace {

using testing::HasSubstr;

constexpr char kData = 0, kHeaders = 1, kPriority = 2, kReset = 3, kSettings = 4, kPing = 6;
constexpr char kWindowUpdate = 8, kContinuation = 9, kNobodys = 77;
constexpr char kAck = 1, kEndStream = 1, kEndHeaders = 4;

std::string Head(size_t size, char type, char flags, uint32_t stream) {
  const auto byte = [](size_t number, int shift) { return static_cast<char>(number >> shift); };
  return {byte(size, 16),   byte(size, 8),    byte(size, 0),   type,           flags,
          byte(stream, 24), byte(stream, 16), byte(stream, 8), byte(stream, 0)};
}
std::string Frame(char type, char flags, uint32_t stream, size_t size = 0) {
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
std::string Call(uint32_t stream) {
  return Frame(kHeaders, kEndHeaders, stream, 200) + Frame(kData, kEndStream, stream, 40);
}
std::string Stream(uint32_t stream) {
  return Frame(kHeaders, kEndHeaders, stream, 200) + Frame(kData, 0, stream, 40) +
         Frame(kData, 0, stream, 5) + Frame(kData, kEndStream, stream);
}
// What gRPC says at the end of one.
FrameHead EndOf(uint32_t stream) {
  return {
      .size = 30, .type = FrameType::kHeaders, .flags = kEndHeaders | kEndStream, .stream = stream};
}

class FrameGuardTest : public testing::Test {
 protected:
  FrameGuardTest() { EXPECT_THAT(Take(kHello), IsOk()); }

  absl::Status Take(const std::string& bytes) { return guard_.Take(bytes, now_); }
  std::string Refusal(const std::string& bytes) { return std::string(Take(bytes).message()); }
  // How many of `frame` are taken at once; or of what it makes of a call's number, each of another.
  int MostOf(const std::string& frame) {
    return MostOf([&frame](uint32_t) { return frame; });
  }
  int MostOf(const std::function<std::string(uint32_t stream)>& frame) {
    int taken = 0;
    for (; taken < 100000; ++taken) {
      const uint32_t stream = next_ += 2;
      if (!Take(frame(stream)).ok()) break;
      guard_.Said(EndOf(stream));
    }
    return taken;
  }

  absl::Time now_ = absl::UnixEpoch();
  uint32_t next_ = 1;
  FrameGuard guard_{FrameBounds(), now_};
};

TEST_F(FrameGuardTest, TakesWhatClientsOfGrpcSend) {
  for (uint32_t stream = 1; stream < 80000; stream += 4) {
    ASSERT_THAT(Take(Call(stream)), IsOk()) << stream;
    ASSERT_THAT(Take(Stream(stream + 2)), IsOk()) << stream;
    guard_.Said(EndOf(stream + 2));
    guard_.Said(EndOf(stream));
  }
  EXPECT_EQ(guard_.open_calls(), 0u);
  EXPECT_THAT(Take(Frame(kSettings, kAck, 0)), IsOk());
  EXPECT_THAT(Take(Frame(kPing, 0, 0, 8)), IsOk());
  EXPECT_THAT(Take(Frame(kNobodys, 0, 0, 8)), IsOk());
  EXPECT_THAT(Take(Times(1000, Frame(kReset, 0, 1, 4))), IsOk());
  EXPECT_THAT(Take(Times(10000, Frame(kData, 0, 1, 16384))), IsOk());
}

TEST_F(FrameGuardTest, TakesTheSameInPiecesOfAnySize) {
  const std::string all = kHello + Call(1) + Stream(3) + Frame(kHeaders, 0, 5, 100) +
                          Frame(kContinuation, kEndHeaders, 5, 100) + Call(7);
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
  EXPECT_THAT(eager.Take(kPreface + Call(1), now_).message(), HasSubstr("before its settings"));
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
    std::function<std::string(uint32_t)> frame;
    std::string said;
    int most;
  } floods[] = {
      {[](uint32_t n) { return Frame(kHeaders, kEndHeaders, n, 9) + Frame(kReset, 0, n, 4); },
       "calls that are reset", burst(FrameKind::kCallWithoutMessage)},
      {[](uint32_t n) { return Frame(kHeaders, kEndHeaders | kEndStream, n, 9); },
       "calls that are reset", burst(FrameKind::kCallWithoutMessage)},
      {[](uint32_t) { return Frame(kHeaders, kEndHeaders, 1, 9); }, "calls that are reset",
       burst(FrameKind::kCallWithoutMessage) + 1},
      {[](uint32_t) { return Frame(kPing, 0, 0, 8); }, "PING", burst(FrameKind::kPing)},
      {[](uint32_t) { return Frame(kPing, kAck, 0, 8); }, "PING", burst(FrameKind::kPing)},
      {[](uint32_t) { return Frame(kPriority, 0, 1, 5); }, "PRIORITY", burst(FrameKind::kPriority)},
      {[](uint32_t) { return Frame(kData, 0, 1, 0); }, "DATA frames without data",
       burst(FrameKind::kEmptyData)},
      {[](uint32_t) { return Frame(kData, 0, 1, 4); }, "DATA frames without data",
       burst(FrameKind::kEmptyData)},
      {[](uint32_t) { return Frame(kData, kEndStream, 1, 0); }, "DATA frames without data",
       burst(FrameKind::kEmptyData)},
      {[](uint32_t) { return Frame(kWindowUpdate, 0, 0, 4); }, "WINDOW_UPDATE",
       burst(FrameKind::kWindowUpdate)},
      {[](uint32_t) { return Frame(kNobodys, 0, 0, 4); }, "mean nothing here",
       burst(FrameKind::kUnknown)},
  };
  for (const auto& flood : floods) {
    guard_ = FrameGuard(FrameBounds(), now_);
    ASSERT_THAT(Take(kHello), IsOk());
    EXPECT_EQ(MostOf(flood.frame), flood.most) << flood.said;
    EXPECT_THAT(Refusal(flood.frame(next_ += 2)), HasSubstr(flood.said));
  }
}

TEST_F(FrameGuardTest, TakesAsManyCallsAtATimeAsCoorddAnnounces) {
  for (uint32_t call = 0; call < 1024; ++call) ASSERT_THAT(Take(Call(2 * call + 1)), IsOk());
  EXPECT_EQ(guard_.open_calls(), 1024u);
  // Each end makes room for one.
  guard_.Said(EndOf(77));
  guard_.Said({.type = FrameType::kResetStream, .stream = 79});
  guard_.Said({.type = FrameType::kData, .flags = 0, .stream = 81});
  EXPECT_THAT(Take(Call(3001) + Call(3003)), IsOk());
  EXPECT_THAT(Refusal(Call(3005)), HasSubstr("more calls at a time than the 1024"));
}

TEST_F(FrameGuardTest, CallsBesideAConnectionsFirstAreCountedWithThoseOfOthers) {
  const auto shared = std::make_shared<SharedBudget>(1000, 200, now_);
  std::vector<FrameGuard> guards;
  for (int i = 0; i < 20; ++i) guards.emplace_back(FrameBounds(), now_, shared);
  int64_t taken = 0;
  const auto fill = [&](FrameGuard& guard) {
    EXPECT_THAT(guard.Take(kHello, now_), IsOk());
    for (uint32_t call = 0; call < 1000; ++call) {
      if (!guard.Take(Call(2 * call + 1), now_).ok()) break;
      ++taken;
    }
  };
  for (FrameGuard& guard : guards) fill(guard);
  EXPECT_EQ(taken, 20 * 16 + SharedBudget::kOpenCallsMax);
  // What a connection had is free again at its end, which is not told here.
  guards.erase(guards.begin());
  guards.emplace_back(FrameBounds(), now_, shared);
  taken = 0;
  fill(guards.back());
  EXPECT_EQ(taken, 1000);
}

TEST_F(FrameGuardTest, WhoseConnectionsEndWithManyCallsUnderWayHasFewForAWhile) {
  const auto shared = std::make_shared<SharedBudget>(1100, 200, now_);
  const auto most = [&] {
    FrameGuard guard(FrameBounds(), now_, shared);
    EXPECT_THAT(guard.Take(kHello, now_), IsOk());
    uint32_t taken = 0;
    while (taken < 1024 && guard.Take(Call(2 * taken + 1), now_).ok()) ++taken;
    guard.End(now_);
    return taken;
  };
  EXPECT_EQ(most(), 1024u);
  EXPECT_EQ(most(), 1024u);  // 92 were left
  EXPECT_EQ(most(), 16u);
  EXPECT_EQ(most(), 16u);  // those of each are free
  now_ += absl::Seconds(10);
  EXPECT_EQ(most(), 1024u);
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

// As the store's, again and again: a client moves both windows on for each.
TEST_F(FrameGuardTest, TakesAnyNumberOfCallsWithSmallAnswers) {
  for (int i = 0; i < 20000; ++i) {
    const uint32_t stream = next_ += 2;
    ASSERT_THAT(Take(Call(stream)), IsOk());
    guard_.Answered(9 + 12);
    guard_.Said({.size = 12, .type = FrameType::kData, .flags = 0, .stream = stream});
    guard_.Said(EndOf(stream));
    ASSERT_THAT(Take(Frame(kWindowUpdate, 0, stream, 4) + Frame(kWindowUpdate, 0, 0, 4)), IsOk());
  }
  // An end without a message moves no window.
  for (int i = 0; i < 5000; ++i)
    guard_.Said({.size = 0, .type = FrameType::kData, .flags = kEndStream, .stream = 1});
  EXPECT_LE(MostOf(Frame(kWindowUpdate, 0, 1, 4)), 4096);
}

TEST_F(FrameGuardTest, TakesTheFramesThatWindowsCut) {
  for (int i = 0; i < 20000; ++i) {
    guard_.Said({.size = 4, .type = FrameType::kWindowUpdate, .flags = 0, .stream = 1});
    ASSERT_THAT(Take(Frame(kData, 0, 1, 3) + Frame(kData, 0, 3, 1)), IsOk());
  }
}

TEST_F(FrameGuardTest, GivesNothingForAClockThatGoesBack) {
  MostOf(Frame(kPing, 0, 0, 8));
  now_ -= absl::Hours(1);
  EXPECT_FALSE(Take(Frame(kPing, 0, 0, 8)).ok());
}

TEST_F(FrameGuardTest, KnowsWhichOfGrpcsPingsHadAnAnswer) {
  const FrameHead ping = {.size = 8, .type = FrameType::kPing};
  guard_.Said(ping);
  guard_.Said(ping);
  guard_.Said({.size = 8, .type = FrameType::kPing, .flags = kAck});  // an answer to the client's
  EXPECT_EQ(guard_.unanswered_pings(), 2u);
  EXPECT_THAT(Take(Frame(kPing, 0, 0, 8) + Frame(kPing, kAck, 0, 8)), IsOk());
  EXPECT_EQ(guard_.unanswered_pings(), 1u);
  EXPECT_THAT(Take(Times(3, Frame(kPing, kAck, 0, 8))), IsOk());  // more answers than pings
  EXPECT_EQ(guard_.unanswered_pings(), 0u);
}

TEST_F(FrameGuardTest, KnowsWhetherAPingWithoutAnAnswerMetACall) {
  const FrameHead ping = {.size = 8, .type = FrameType::kPing};
  guard_.Said(ping);
  EXPECT_FALSE(guard_.had_a_call_then());
  EXPECT_THAT(Take(Call(1)), IsOk());
  guard_.Said(EndOf(1));  // gRPC ends calls before it closes
  EXPECT_TRUE(guard_.had_a_call_then());
  EXPECT_THAT(Take(Frame(kPing, kAck, 0, 8)), IsOk());
  EXPECT_FALSE(guard_.had_a_call_then());
  EXPECT_THAT(Take(Call(3)), IsOk());
  guard_.Said(ping);
  guard_.Said(EndOf(3));
  EXPECT_TRUE(guard_.had_a_call_then());
}

TEST_F(FrameGuardTest, KnowsAnAnswerThatGrpcMayNotHaveHeard) {
  const FrameHead ping = {.size = 8, .type = FrameType::kPing};
  const std::string pong = Frame(kPing, kAck, 0, 8);
  guard_.Said(ping);  // while there is no call, for which clients of gRPC's do not read
  EXPECT_FALSE(guard_.answered_too_late());
  EXPECT_THAT(Take(Call(1) + pong), IsOk());
  EXPECT_TRUE(guard_.answered_too_late());
  guard_.Said(EndOf(1));  // it has heard
  EXPECT_FALSE(guard_.answered_too_late());
  EXPECT_THAT(Take(Call(3)), IsOk());
  guard_.Said(ping);
  EXPECT_THAT(Take(pong), IsOk());
  EXPECT_FALSE(guard_.answered_too_late());
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
