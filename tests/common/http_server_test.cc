#include "common/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/support/http_client.h"

namespace coordd {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::unique_ptr<HttpServer> Echo() {
  auto server = HttpServer::Start(
      {"127.0.0.1", 0},
      {{"/",
        [](const std::string&) {
          return HttpResponse{200, "text/html", "<p>root"};
        }},
       {"/echo", [](const std::string& query) { return HttpResponse{.body = "query=" + query}; }},
       {"/down", [](const std::string&) { return HttpResponse{.status = 503, .body = "no"}; }}});
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(HttpServer, ServesExactPathsOnAPickedPort) {
  const auto server = Echo();
  EXPECT_EQ(server->address().host, "127.0.0.1");
  EXPECT_NE(server->address().port, 0);
  const HttpAnswer root = HttpGet(server->address(), "/");
  EXPECT_EQ(root.status, 200);
  EXPECT_EQ(root.body, "<p>root");
  EXPECT_THAT(root.head, AllOf(HasSubstr("Content-Type: text/html"), HasSubstr("no-store")));
  EXPECT_EQ(HttpGet(server->address(), "/echo?a=%20b").body, "query=a=%20b");
  EXPECT_EQ(HttpGet(server->address(), "/down").status, 503);
}

TEST(HttpServer, ListsWhatThereIsOnAnUnknownPath) {
  const auto server = Echo();
  for (const char* path : {"/nothing", "/echo/", "/echo/more", "/../etc/passwd", "//"}) {
    const HttpAnswer answer = HttpGet(server->address(), path);
    EXPECT_EQ(answer.status, 404) << path;
    EXPECT_THAT(answer.body, HasSubstr("/, /down, /echo")) << path;
  }
}

TEST(HttpServer, AnswersHeadWithoutABody) {
  const auto server = Echo();
  const HttpAnswer answer = HttpGet(server->address(), "/", "HEAD");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "");
  EXPECT_THAT(answer.head, HasSubstr("Content-Length: 7"));
}

TEST(HttpServer, IsReadOnly) {
  const auto server = Echo();
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
    EXPECT_EQ(HttpGet(server->address(), "/", method).status, 405) << method;
}

TEST(HttpServer, DropsHugeAndBrokenRequests) {
  const auto server = Echo();
  const std::string huge = "GET / HTTP/1.0\r\nX: " + std::string(20000, 'x') + "\r\n\r\n";
  EXPECT_THAT(HttpExchange(server->address().port, huge), Not(HasSubstr("<p>root")));
  EXPECT_THAT(HttpExchange(server->address().port, "\x01\x02garbage\r\n\r\n"),
              Not(HasSubstr("<p>root")));
  EXPECT_EQ(HttpGet(server->address(), "/").status, 200);
}

TEST(HttpServer, ServesSeveralAtOnce) {
  const auto server = Echo();
  std::vector<std::thread> clients;
  std::vector<int> statuses(16, 0);
  for (int& status : statuses)
    clients.emplace_back([&] { status = HttpGet(server->address(), "/echo").status; });
  for (std::thread& client : clients) client.join();
  EXPECT_THAT(statuses, testing::Each(200));
}

TEST(HttpServer, SaysWhichAddressItCannotHave) {
  const auto server = Echo();
  const auto second = HttpServer::Start(server->address(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(server->address().ToString()));
  EXPECT_FALSE(HttpServer::Start({"no-such-host.invalid", 0}, {}).ok());
}

TEST(HttpServer, GivesThePortBackWhenItIsGone) {
  auto server = Echo();
  const HostPort address = server->address();
  server.reset();
  EXPECT_EQ(HttpGet(address, "/").status, 0);
  EXPECT_TRUE(HttpServer::Start(address, {}).ok());
}

}  // namespace
}  // namespace coordd
