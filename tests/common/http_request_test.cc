#include "common/http_request.h"

#include <gtest/gtest.h>

#include <string>

namespace coordd {
namespace {

bool IsNone(const std::string& bytes) {
  const auto request = ParseHttpRequest(bytes);
  return request.has_value() && request->method.empty();
}

TEST(HttpRequest, HasMethodPathQueryAndHost) {
  const auto request = ParseHttpRequest(
      "GET /v1/events?job=a&limit=5 HTTP/1.1\r\nA: b\r\nhOST:  localhost:80 \r\n\r\n");
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->method, "GET");
  EXPECT_EQ(request->path, "/v1/events");
  EXPECT_EQ(request->query, "job=a&limit=5");
  EXPECT_EQ(request->host, "localhost:80");
}

TEST(HttpRequest, NeedsItsEmptyLine) {
  const std::string whole = "HEAD / HTTP/1.0\r\nA: b\r\n\r\n";
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_FALSE(ParseHttpRequest(whole.substr(0, bytes)).has_value()) << bytes;
  const auto request = ParseHttpRequest(whole);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->method, "HEAD");
  EXPECT_FALSE(request->host.has_value());
  EXPECT_EQ(ParseHttpRequest("GET /x HTTP/1.1\nHost: h\n\n")->host, "h");
}

TEST(HttpRequest, IsNothingElse) {
  for (const char* bytes :
       {"\x16\x03\x01", "\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2.0\r\n\r\n",
        "GET x HTTP/1.1\r\n\r\n", "GET http://h/ HTTP/1.1\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n",
        "G\x01T / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"}) {
    EXPECT_TRUE(IsNone(bytes)) << bytes;
  }
}

TEST(HttpRequest, KnowsWhoWasSentToLoopbackByAPage) {
  for (const char* host : {"localhost", "LOCALHOST:29651", "127.0.0.1", "127.1.2.3:1",
                           "[::1]:29651", "[::1]", "launch:29651", "Launch"}) {
    EXPECT_FALSE(NamesAnotherHost(host, "launch")) << host;
  }
  for (const char* host : {"evil.com", "evil.com:29651", "localhost.evil.com", "127.0.0.1.evil.com",
                           "", ":", "[", "[]", "10.0.0.1:80", "[fe80::1]:80"}) {
    EXPECT_TRUE(NamesAnotherHost(host, "launch")) << host;
  }
}

}  // namespace
}  // namespace coordd
