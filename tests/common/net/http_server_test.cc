#include "common/net/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "common/net/listening_sockets.h"
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

TEST(HttpServer, ItsPagesStandInNobodysFrameAndAskNobodyElse) {
  const auto server = Echo();
  for (const char* path : {"/", "/nothing"}) {
    const HttpAnswer answer = HttpGet(server->address(), path);
    EXPECT_THAT(answer.head, HasSubstr("\r\nX-Frame-Options: DENY\r\n"));
    EXPECT_THAT(answer.head, HasSubstr("frame-ancestors 'none'"));
    EXPECT_THAT(answer.head, HasSubstr("default-src 'none'"));
    EXPECT_THAT(answer.head, HasSubstr("connect-src 'self'"));
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

// Eighty who send a byte now and then, and one who never reads what he asked for.
TEST(HttpServer, AnswersAtOnceWhateverSlowClientsDo) {
  std::atomic<bool> stop = false;
  auto started = HttpServer::Start(
      {"127.0.0.1", 0},
      {{"/healthz", [](const std::string&) { return HttpResponse{.body = "ok\n"}; }},
       {"/large",
        [](const std::string&) { return HttpResponse{.body = std::string(64 << 20, 'x')}; }}});
  ASSERT_TRUE(started.ok()) << started.status();
  const HostPort address = (*started)->address();
  const int greedy = ConnectLoopback(address.port);
  const std::string ask = "GET /large HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(greedy, ask.data(), ask.size(), MSG_NOSIGNAL), static_cast<ssize_t>(ask.size()));
  std::vector<std::thread> slow;
  std::atomic<int> connected = 0;
  for (int i = 0; i < 80; ++i) {
    slow.emplace_back([&] {
      while (!stop) {
        const int fd = ConnectLoopback(address.port);
        ++connected;
        const std::string request = "GET /healthz HTTP/1.1\r\nX: " + std::string(1000, 'x');
        for (size_t at = 0; at < request.size() && !stop; ++at) {
          if (send(fd, &request[at], 1, MSG_NOSIGNAL) != 1) break;
          pollfd ended = {fd, POLLIN, 0};
          if (poll(&ended, 1, /*timeout in ms=*/20) != 0) break;
        }
        close(fd);
      }
    });
  }
  while (connected < 80) std::this_thread::yield();
  for (int probe = 0; probe < 30; ++probe) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(HttpGet(address, "/healthz").body, "ok\n");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  }
  stop = true;
  for (std::thread& thread : slow) thread.join();
  close(greedy);
}

TEST(HttpServer, OneTooManyTakesThePlaceOfWhoHasNotAsked) {
  auto server = HttpServer::StartWith(
      HttpServerOptions{.address = {"127.0.0.1", 0}, .ports = std::nullopt, .connections_max = 3},
      {{"/", [](const std::string&) { return HttpResponse{}; }}});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<int> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(ConnectLoopback((*server)->address().port));
  EXPECT_EQ(HttpGet((*server)->address(), "/").status, 200);
  for (int fd : silent) close(fd);
}

TEST(HttpServer, OnLoopbackAnswersWhoAsksForLoopback) {
  const auto server = Echo();
  const auto ask = [&](const std::string& host) {
    return HttpExchange(server->address().port, "GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  };
  EXPECT_THAT(ask("localhost:1234"), HasSubstr("<p>root"));
  EXPECT_THAT(ask("[::1]"), HasSubstr("<p>root"));
  EXPECT_THAT(ask("evil.example:29651"),
              AllOf(HasSubstr(" 421 "), HasSubstr("evil.example:29651"), Not(HasSubstr("root"))));
}

TEST(HttpServer, WritesOutWhatAHostMayNotBe) {
  const auto server = Echo();
  const std::string answer =
      HttpExchange(server->address().port, "GET / HTTP/1.1\r\nHost: \x1b[31mevil\r\n\r\n");
  EXPECT_THAT(answer, AllOf(HasSubstr(" 421 "), HasSubstr("[31mevil"), Not(HasSubstr("\x1b"))));
}

TEST(HttpServer, UnderstandsWhatProxiesAndOldClientsSend) {
  const auto server = Echo();
  const uint16_t port = server->address().port;
  EXPECT_THAT(HttpExchange(port, "GET http://localhost/ HTTP/1.1\r\nHost: evil\r\n\r\n"),
              HasSubstr("<p>root"));
  EXPECT_THAT(HttpExchange(port, "GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n"),
              HasSubstr(" 421 "));
  EXPECT_THAT(HttpExchange(port, "\r\nGET / HTTP/1.1\n\r\n"), HasSubstr("<p>root"));
  EXPECT_THAT(HttpExchange(port, "M_SEARCH * HTTP/1.1\r\n\r\n"), HasSubstr(" 405 "));
  EXPECT_THAT(HttpExchange(port, "\r\n\r\nGET / HTTP/1.1\r\n\r\n"), HasSubstr(" 400 "));
  // One request for each connection: the second one is not answered.
  const std::string both =
      HttpExchange(port, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /x HTTP/1.1\r\n\r\n");
  EXPECT_THAT(both, AllOf(HasSubstr("Connection: close"), Not(HasSubstr("404"))));
}

TEST(HttpServer, BeyondLoopbackAnswersWhateverItIsCalled) {
  auto server =
      HttpServer::Start({"0.0.0.0", 0}, {{"/", [](const std::string&) { return HttpResponse{}; }}});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(
      HttpExchange((*server)->address().port, "GET / HTTP/1.1\r\nHost: launch.cluster\r\n\r\n"),
      HasSubstr(" 200 "));
}

TEST(HttpServer, ListensOnIPv6) {
  auto server =
      HttpServer::Start({"::1", 0}, {{"/", [](const std::string&) { return HttpResponse{}; }}});
  if (!server.ok()) GTEST_SKIP() << server.status();
  EXPECT_NE((*server)->address().port, 0);
  const auto client = ConnectWithin((*server)->address(), absl::Seconds(10));
  EXPECT_TRUE(client.ok()) << client.status();
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
