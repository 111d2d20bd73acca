#include "worker/base/stack_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/base/utf8.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

using ::testing::EndsWith;
using ::testing::StartsWith;

TEST(StackText, TheMainThreadGoesFirstAndAddressesGo) {
  EXPECT_EQ(StackText("Thread 0x00007f1234 (most recent call first):\n"
                      "  File \"queue.py\", line 5 in get\n"
                      "\n"
                      "Current thread 0x00007f5678 (most recent call first):\n"
                      "  File \"train.py\", line 12 in read\n"
                      "  File \"train.py\", line 30 in <module>\n"),
            "main thread:\n"
            "  File \"train.py\", line 12 in read\n"
            "  File \"train.py\", line 30 in <module>\n"
            "another thread:\n"
            "  File \"queue.py\", line 5 in get");
}

TEST(StackText, WhatIsNotOfPythonStaysAsItIs) {
  EXPECT_EQ(StackText("frame 1\nframe 2\n"), "frame 1\nframe 2");
  EXPECT_EQ(StackText(""), "");
}

TEST(StackText, IsBoundedAndTravels) {
  std::string dump = "Thread 0x1 (most recent call first):\n";
  while (dump.size() < 2 * kMaxStackBytes) dump += "  File \"\xe4.py\", line 1 in f\n";
  dump += "Current thread 0x2 (most recent call first):\n  File \"main.py\", line 2 in g\n";
  const std::string text = StackText(dump);
  EXPECT_LE(static_cast<int64_t>(text.size()), kMaxStackBytes);
  EXPECT_TRUE(IsUtf8(text));
  EXPECT_THAT(text, StartsWith("main thread:\n  File \"main.py\", line 2 in g\n"));
  EXPECT_THAT(text, EndsWith("line 1 in f"));
}

}  // namespace
}  // namespace coordd
