#include "server/door/closing_word.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace coordd {
namespace {

std::string Bytes(uint32_t number, int size) {
  std::string bytes;
  for (int i = size - 1; i >= 0; --i) bytes += static_cast<char>(number >> (8 * i));
  return bytes;
}
std::string Frame(uint8_t type, const std::string& payload) {
  return Bytes(static_cast<uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         std::string(1, '\0') + Bytes(0, 4) + payload;
}
std::string Goaway(uint32_t error, const std::string& word) {
  return Frame(7, Bytes(0x7fffffff, 4) + Bytes(error, 4) + word);
}
// What goes before: settings, and a message whose bytes look like the head of a GOAWAY.
const std::string kTalk =
    Frame(4, std::string(18, '\0')) + Frame(0, Goaway(11, "no")) + Frame(6, "pingping");

ClosingWord After(const std::string& bytes) {
  ClosingWord word;
  word.Take(bytes, [](const FrameHead&) {});
  return word;
}

TEST(ClosingWordTest, TellsTheErrorAndTheWord) {
  const ClosingWord word = After(kTalk + Goaway(11, "too_many_pings"));
  EXPECT_TRUE(word.said());
  EXPECT_EQ(word.complaint(), "ENHANCE_YOUR_CALM (too_many_pings)");
}

TEST(ClosingWordTest, WhatIsNotGoawaySaysNothing) {
  EXPECT_FALSE(After(kTalk).said());
  EXPECT_FALSE(After(Frame(7, "short")).said());
}

TEST(ClosingWordTest, AnOrderlyEndIsNoComplaint) {
  const ClosingWord word = After(Goaway(0, "Server shutdown"));
  EXPECT_TRUE(word.said());
  EXPECT_EQ(word.complaint(), "");
}

TEST(ClosingWordTest, AnUnknownErrorHasItsNumber) {
  EXPECT_EQ(After(Goaway(99, "")).complaint(), "error 99");
}

TEST(ClosingWordTest, OfALongWordTheBeginningIsKeptAndWhatFollowsIsRead) {
  const ClosingWord word =
      After(Goaway(0, std::string(5000, 'x')) + Goaway(1, std::string(5000, 'y')));
  EXPECT_EQ(word.complaint(), "PROTOCOL_ERROR (" + std::string(64, 'y') + ")");
}

TEST(ClosingWordTest, AWordIsMadePrintable) {
  EXPECT_EQ(After(Goaway(1, "\x1b[2J")).complaint().find('\x1b'), std::string::npos);
}

TEST(ClosingWordTest, PiecesMayEndAnywhere) {
  std::mt19937 random(7);
  const std::string all = kTalk + Goaway(0, "first") + kTalk + Goaway(2, "then");
  for (int i = 0; i < 200; ++i) {
    ClosingWord word;
    int frames = 0;
    for (size_t at = 0; at < all.size();) {
      const size_t size = std::min<size_t>(all.size() - at, random() % 12);
      word.Take(absl::string_view(all).substr(at, size), [&](const FrameHead&) { ++frames; });
      at += size;
    }
    EXPECT_EQ(word.complaint(), "INTERNAL_ERROR (then)");
    EXPECT_EQ(frames, 8);
  }
}

}  // namespace
}  // namespace coordd
