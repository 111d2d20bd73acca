#include "common/base/utf8.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace coordd {
namespace {

TEST(PrintableText, ShowsWhatATerminalWouldObey) {
  EXPECT_EQ(PrintableText("\x1b[2Jlayer\nrank 1"), "\\x1b[2Jlayer\\x0arank 1");
  EXPECT_EQ(PrintableText("a\x7f"
                          "b"),
            "a\\x7f"
            "b");
  EXPECT_EQ(PrintableText("csi \u009b31m"), "csi \\u009b31m");
  EXPECT_EQ(PrintableText("abc\u202egnp.exe\u2066\u200f\u061c\ufeff\u2028"),
            "abc\\u202egnp.exe\\u2066\\u200f\\u061c\\ufeff\\u2028");
}

TEST(PrintableText, ShowsBytesThatAreNoText) {
  EXPECT_EQ(PrintableText("a\xff"
                          "b\xc3"),
            "a\\xff"
            "b\\xc3");
  EXPECT_EQ(PrintableText("\x9b"
                          "31m"),
            "\\x9b"
            "31m");
}

TEST(PrintableText, LeavesTextAsItIs) {
  const std::string text = "model.layers.0/κόσμε 世界 \U0001f600 naïve";
  EXPECT_EQ(PrintableText(text), text);
  EXPECT_EQ(PrintableText("two\nlines\t", "\n"), "two\nlines\\x09");
}

TEST(PrintableText, WritesOutWhatNobodySees) {
  EXPECT_EQ(PrintableText("a\u00adb\u034fc\u115fd\u3164e\ufe0ff\uffa0g"),
            "a\\u00adb\\u034fc\\u115fd\\u3164e\\ufe0ff\\uffa0g");
  EXPECT_EQ(PrintableText("\u200b\u200d\u2060\u180e\ufff9\U000e0041\U000e0100"),
            "\\u200b\\u200d\\u2060\\u180e\\ufff9\\ue0041\\ue0100");
  EXPECT_EQ(PrintableText("\u00ac\u00ae\u0350\u1161\u3163\ufe10"),
            "\u00ac\u00ae\u0350\u1161\u3163\ufe10");
}

TEST(PrintableText, WritesOutSpacesThatAreNotThePlainOne) {
  EXPECT_EQ(PrintableText("a\u00a0b\u1680\u2003\u202f\u205f\u3000\u2800 c"),
            "a\\u00a0b\\u1680\\u2003\\u202f\\u205f\\u3000\\u2800 c");
}

TEST(PrintableText, WritesOutFormatsPrivateAndUnassignedCharacters) {
  EXPECT_EQ(PrintableText("\u0600\U00013430\ue000\U000f0000\U0010ffff\u0378\ufdd0\U0001d159"),
            "\\u0600\\u13430\\ue000\\uf0000\\u10ffff\\u0378\\ufdd0\\u1d159");
}

TEST(PrintableJson, HoldsTheSameText) {
  const nlohmann::json said = {{"name", "a\u009b\u202e\x7f\U000e0001 世界\n\x1b"}};
  const std::string plain = said.dump(2);
  const std::string shown = PrintableJson(plain);
  EXPECT_EQ(shown.find("\u009b"), std::string::npos);
  EXPECT_EQ(shown.find("\u202e"), std::string::npos);
  EXPECT_EQ(shown.find('\x7f'), std::string::npos);
  EXPECT_NE(shown.find("世界"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(shown), said);
}

TEST(IsPrintable, IsWhatNothingOfIsWrittenOut) {
  for (const char* text : {"", "worker 7 ~", "\xc3\xa9t\xc3\xa9"})
    EXPECT_TRUE(IsPrintable(text)) << text;
  for (const char* text : {"\x1b[31m", "a\nb", "\x7f", "\xc2\x9b", "\xe2\x80\xae", "\xff"})
    EXPECT_FALSE(IsPrintable(text)) << PrintableText(text);
}

}  // namespace
}  // namespace coordd
