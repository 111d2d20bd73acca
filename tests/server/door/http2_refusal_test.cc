#include "server/door/http2_refusal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace coordd {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

std::string Frame(char type, char flags, char stream, const std::string& payload) {
  std::string frame = {0,
                       static_cast<char>(payload.size() >> 8),
                       static_cast<char>(payload.size() & 0xff),
                       type,
                       flags,
                       0,
                       0,
                       0,
                       stream};
  return frame + payload;
}
const std::string kSettings = Frame(4, 0, 0, "");
const std::string kSettingsAck = Frame(4, 1, 0, "");

TEST(Http2Refusal, AnswersTheFirstCall) {
  Http2Refusal refusal(absl::FailedPreconditionError("TLS is wanted"));
  EXPECT_EQ(refusal.Take(kPreface + Frame(4, 0, 0, "123456")), kSettings + kSettingsAck);
  EXPECT_EQ(refusal.Take(kSettingsAck + Frame(8, 0, 0, "1234")), "");
  EXPECT_FALSE(refusal.done());
  const std::string answer = refusal.Take(Frame(1, 4, 3, "whatever it asks for"));
  EXPECT_TRUE(refusal.done());
  EXPECT_THAT(answer, HasSubstr(std::string("\0\0\4\3\0\0\0\0\3\0\0\0\0", 13)));  // for who streams
  EXPECT_EQ(answer.substr(3, 6), std::string("\1\5\0\0\0\3", 6));
  EXPECT_THAT(answer, HasSubstr("\x0bgrpc-status\x01"
                                "9"));
  EXPECT_THAT(answer, HasSubstr("\x0cgrpc-message\x0dTLS is wanted"));
}

TEST(Http2Refusal, TakesBytesOneByOne) {
  Http2Refusal refusal(absl::UnavailableError("full"));
  std::string said;
  for (char c : kPreface + Frame(4, 0, 0, "123456") + Frame(1, 4, 1, "x"))
    said += refusal.Take(std::string(1, c));
  EXPECT_TRUE(refusal.done());
  EXPECT_THAT(said, StartsWith(kSettings + kSettingsAck));
  EXPECT_THAT(said, HasSubstr("full"));
}

TEST(Http2Refusal, WritesLongSentences) {
  const std::string sentence(300, 'x');
  Http2Refusal refusal(absl::UnavailableError(sentence));
  const std::string said = refusal.Take(kPreface + Frame(1, 4, 1, "x"));
  EXPECT_THAT(said, HasSubstr("\x7f\xad\x01" + sentence));  // 127 + 45 + 128: RFC 7541, 5.1
}

TEST(Http2Refusal, IsDoneWithWhoNeverCalls) {
  Http2Refusal refusal(absl::UnavailableError("full"));
  refusal.Take(kPreface);
  for (int i = 0; i < 70 && !refusal.done(); ++i)
    refusal.Take(Frame(6, 0, 0, std::string(1000, 0)));
  EXPECT_TRUE(refusal.done());
  EXPECT_EQ(refusal.Take(Frame(1, 4, 1, "x")), "");
}

TEST(TlsFullRefusal, IsAnotherAlert) {
  EXPECT_EQ(TlsFullRefusal(), std::string("\x15\3\1\0\2\2\x50", 7));
}
TEST(TlsRefusal, IsAnAlert) { EXPECT_EQ(TlsRefusal(), std::string("\x15\3\1\0\2\2\x78", 7)); }

}  // namespace
}  // namespace coordd
