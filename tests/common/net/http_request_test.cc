#include "common/net/http_request.h"

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
  EXPECT_EQ(ParseHttpRequest("GET /x HTTP/1.1\nHost: h\n\n")->authorization, "");
  EXPECT_EQ(ParseHttpRequest("GET / HTTP/1.1\nauthorization:  Bearer x \n\n")->authorization,
            "Bearer x");
  // Which of two would count, nobody knows.
  EXPECT_EQ(
      ParseHttpRequest("GET / HTTP/1.1\nAuthorization: a\nAuthorization: b\n\n")->authorization,
      "");
}

TEST(HttpRequest, MayHaveALinesEndInFront) {
  EXPECT_FALSE(ParseHttpRequest("\r").has_value());
  EXPECT_FALSE(ParseHttpRequest("\r\n").has_value());
  EXPECT_EQ(ParseHttpRequest("\r\nGET /x HTTP/1.1\r\n\r\n")->path, "/x");
  EXPECT_EQ(ParseHttpRequest("\nGET /x HTTP/1.1\n\n")->path, "/x");
}

TEST(HttpRequest, EndsWithAnyEmptyLine) {
  for (const char* end : {"\r\n\r\n", "\n\n", "\n\r\n", "\r\n\n"})
    EXPECT_EQ(ParseHttpRequest(std::string("GET /x HTTP/1.1\r\nHost: h") + end)->host, "h");
  EXPECT_EQ(ParseHttpRequest("GET /x HTTP/1.1\n\r\n")->path, "/x");
}

TEST(HttpRequest, MayNameItsHostInTheTarget) {
  const auto request =
      ParseHttpRequest("GET http://127.0.0.1:80/metrics?a HTTP/1.1\r\nHost: b\r\n\r\n");
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->path, "/metrics");
  EXPECT_EQ(request->query, "a");
  EXPECT_EQ(request->host, "127.0.0.1:80");
  EXPECT_EQ(ParseHttpRequest("GET HTTP://h HTTP/1.1\r\n\r\n")->path, "/");
  EXPECT_EQ(ParseHttpRequest("GET http://h?x HTTP/1.1\r\n\r\n")->query, "x");
}

TEST(HttpRequest, MayHaveAnyMethodAndItsTarget) {
  EXPECT_EQ(ParseHttpRequest("M_SEARCH / HTTP/1.1\r\n\r\n")->method, "M_SEARCH");
  EXPECT_EQ(ParseHttpRequest("OPTIONS * HTTP/1.1\r\n\r\n")->method, "OPTIONS");
  EXPECT_EQ(ParseHttpRequest("CONNECT h:443 HTTP/1.1\r\n\r\n")->method, "CONNECT");
}

TEST(HttpRequest, IsNothingElse) {
  for (const char* bytes :
       {"\x16\x03\x01", "\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/2.0\r\n\r\n",
        "GET x HTTP/1.1\r\n\r\n", "GET https://h/ HTTP/1.1\r\n\r\n", "GET /a b HTTP/1.1\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n", "G\x01T / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"}) {
    EXPECT_TRUE(IsNone(bytes)) << bytes;
  }
}

TEST(HttpRequest, KnowsWhoWasSentToLoopbackByAPage) {
  for (const char* host : {"localhost", "LOCALHOST:29651", "127.0.0.1", "127.1.2.3:1",
                           "[::1]:29651", "[::1]", "launch:29651", "Launch", "localhost.",
                           "localhost.:80", "launch.", "localhost:", "[::1]:"}) {
    EXPECT_FALSE(NamesAnotherHost(host, "launch")) << host;
  }
  for (const char* host : {"evil.com",
                           "evil.com:29651",
                           "localhost.evil.com",
                           "127.0.0.1.evil.com",
                           "",
                           ":",
                           "[",
                           "[]",
                           "10.0.0.1:80",
                           "[fe80::1]:80",
                           "[::1]evil.com",
                           "[::1].evil.com:80",
                           "[localhost]",
                           "localhost:80evil",
                           "localhost:x",
                           "localhost:1:2",
                           "localhost:99999",
                           "localhost..",
                           "::1",
                           "[::1]80"}) {
    EXPECT_TRUE(NamesAnotherHost(host, "launch")) << host;
  }
}

}  // namespace
}  // namespace coordd
