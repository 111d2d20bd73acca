#include "common/net/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "common/net/client_stream.h"
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

// A connection to 127.0.0.1 from another of loopback's addresses. `takes`: so many bytes unread.
OwnedFd ConnectFrom(const char* address, uint16_t port, int takes = 1 << 16) {
  OwnedFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &takes, sizeof(takes));
  sockaddr_in end = {};
  end.sin_family = AF_INET;
  inet_pton(AF_INET, address, &end.sin_addr);
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&end), sizeof(end)), 0);
  end.sin_port = htons(port);
  inet_pton(AF_INET, "127.0.0.1", &end.sin_addr);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&end), sizeof(end)), 0);
  return fd;
}

// The server may have closed it before.
void Say(const OwnedFd& fd, const std::string& bytes) {
  [[maybe_unused]] const ssize_t sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

// Until the server has closed; what it has said.
std::string Rest(const OwnedFd& fd) {
  std::string text;
  char bytes[4096];
  ssize_t got = 0;
  while ((got = recv(fd.get(), bytes, sizeof(bytes), 0)) > 0)
    text.append(bytes, static_cast<size_t>(got));
  return text;
}

// Whom a server refuses. Thread-safe.
class Refusals {
 public:
  using One = std::pair<HttpRefusal, std::string>;  // why, and to whom, behind it what was said

  auto Noting() {
    return [this](HttpRefusal why, const std::string& peer, const std::string& said) {
      MutexLock lock(&mu_);
      all_.emplace_back(why, peer + " " + said);
    };
  }
  std::vector<One> all() const {
    MutexLock lock(&mu_);
    return all_;
  }

 private:
  mutable Mutex mu_;
  std::vector<One> all_ ABSL_GUARDED_BY(mu_);
};

// Something in the place of TLS that is begun and never over.
class Unfinished final : public ClientStream {
 public:
  Outcome Begin() override { return Outcome::kWantsRead; }
  const std::string& failure() const override { return failure_; }
  Moved Read(char*, size_t) override { return {Outcome::kFailed}; }
  Moved Write(absl::string_view) override { return {Outcome::kFailed}; }
  bool HasMore() const override { return false; }
  void End() override {}

 private:
  const std::string failure_;
};

HttpServerOptions On(const char* host, size_t connections_max = 64) {
  HttpServerOptions options;
  options.address = {host, 0};
  options.connections_max = connections_max;
  return options;
}

const std::map<std::string, HttpHandler> kRoot = {
    {"/", [](const std::string&) { return HttpResponse{.body = "root"}; }}};
constexpr char kAskRoot[] = "GET / HTTP/1.1\r\n\r\n";
constexpr char kHello[] = "\x16";  // as TLS begins

TEST(HttpServer, BeginsNoMoreHandshakesOfAnAddressThanItMay) {
  std::atomic<int> begun = 0;
  Refusals refusals;
  HttpServerOptions options = On("0.0.0.0", /*connections_max=*/1000);
  options.stream = [&](int) {
    ++begun;
    return std::make_unique<Unfinished>();
  };
  options.refused = refusals.Noting();
  auto server = HttpServer::StartWith(options, kRoot);
  ASSERT_TRUE(server.ok()) << server.status();
  const uint16_t port = (*server)->address().port;
  std::vector<OwnedFd> strangers;
  while (refusals.all().empty() && strangers.size() < 20000) {
    strangers.push_back(ConnectFrom("127.0.0.1", port));
    Say(strangers.back(), kHello);
    if (strangers.size() > 200) strangers.erase(strangers.begin());
  }
  ASSERT_FALSE(refusals.all().empty());
  EXPECT_EQ(refusals.all()[0].first, HttpRefusal::kAddressFull);
  EXPECT_THAT(refusals.all()[0].second, testing::StartsWith("127.0.0.1:"));
  const int before = begun;
  const OwnedFd other = ConnectFrom("127.0.0.2", port);
  Say(other, kHello);
  while (begun == before) std::this_thread::yield();  // his is begun
}

TEST(HttpServer, TellsOfAHandshakeThatIsLeft) {
  Refusals refusals;
  HttpServerOptions options = On("127.0.0.1");
  options.stream = [&](int) { return std::make_unique<Unfinished>(); };
  options.refused = refusals.Noting();
  auto server = HttpServer::StartWith(options, kRoot);
  ASSERT_TRUE(server.ok()) << server.status();
  const OwnedFd stranger = ConnectFrom("127.0.0.1", (*server)->address().port);
  Say(stranger, kHello);
  EXPECT_EQ(Rest(stranger), "");
  ASSERT_EQ(refusals.all().size(), 1u);
  EXPECT_EQ(refusals.all()[0].first, HttpRefusal::kHandshake);
}

TEST(HttpServer, TheAddressThatHoldsTheMostMakesRoomForOthers) {
  Refusals refusals;
  HttpServerOptions options = On("0.0.0.0", /*connections_max=*/4);
  options.refused = refusals.Noting();
  auto server = HttpServer::StartWith(options, kRoot);
  ASSERT_TRUE(server.ok()) << server.status();
  const uint16_t port = (*server)->address().port;
  const OwnedFd patient = ConnectFrom("127.0.0.2", port);
  std::vector<OwnedFd> many;
  for (int i = 0; i < 40; ++i) many.push_back(ConnectFrom("127.0.0.1", port));
  const OwnedFd late = ConnectFrom("127.0.0.3", port);
  Say(late, kAskRoot);
  EXPECT_THAT(Rest(late), HasSubstr("root"));
  Say(patient, kAskRoot);
  EXPECT_THAT(Rest(patient), HasSubstr("root"));
  for (size_t i = 0; i < 30; ++i) EXPECT_EQ(Rest(many[i]), "");
  for (const auto& [why, to] : refusals.all()) {
    EXPECT_EQ(why, HttpRefusal::kFull);
    EXPECT_THAT(to, AllOf(testing::StartsWith("127.0.0.1:"), HasSubstr("holds the most")));
  }
}

// All handlers are busy, requests wait, and all places are taken.
TEST(HttpServer, AnswersUrgentRequestsWhateverOthersAskFor) {
  absl::Notification go_on;
  std::atomic<int> running = 0;
  HttpServerOptions options = On("127.0.0.1", /*connections_max=*/8);
  options.urgent = {"/healthz"};
  auto server = HttpServer::StartWith(
      options, {{"/healthz", [](const std::string&) { return HttpResponse{.body = "ok\n"}; }},
                {"/slow", [&](const std::string&) {
                   ++running;
                   go_on.WaitForNotification();
                   return HttpResponse{.body = "slow"};
                 }}});
  ASSERT_TRUE(server.ok()) << server.status();
  const uint16_t port = (*server)->address().port;
  std::vector<OwnedFd> slow;
  for (int i = 0; i < 20; ++i) {
    slow.push_back(ConnectFrom("127.0.0.1", port));
    Say(slow.back(), "GET /slow HTTP/1.1\r\n\r\n");
  }
  while (running < 4) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(HttpGet((*server)->address(), "/healthz").body, "ok\n");
  EXPECT_EQ(running, 4);
  go_on.Notify();
  EXPECT_THAT(Rest(slow[0]), HasSubstr("slow"));  // who is being answered has kept his place
}

// However many wait for the page that takes long: more than there are threads.
TEST(HttpServer, MakesOnePageOfASetAtATimeWhileOthersAreMade) {
  absl::Notification begun, go_on;
  std::atomic<int> under_way = 0, most = 0, made = 0;
  HttpServerOptions options = {.address = {"127.0.0.1", 0}, .ports = std::nullopt};
  options.one_at_a_time = {{"/jobs", "/events"}, {"/metrics"}};
  const HttpHandler slow = [&](const std::string&) {
    most = std::max<int>(most, ++under_way);
    if (!begun.HasBeenNotified()) begun.Notify();
    go_on.WaitForNotification();
    --under_way;
    ++made;
    return HttpResponse{.body = "made"};
  };
  auto server = HttpServer::StartWith(
      options, {{"/jobs", slow}, {"/events", slow}, {"/metrics", [](const std::string&) {
                                                       return HttpResponse{.body = "counted"};
                                                     }}});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      EXPECT_EQ(HttpGet((*server)->address(), i % 2 == 0 ? "/jobs" : "/events").body, "made");
    });
  }
  begun.WaitForNotification();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(HttpGet((*server)->address(), "/metrics").body, "counted");
  EXPECT_EQ(made, 0);
  go_on.Notify();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(made, 8);
  EXPECT_EQ(most, 1);
}

TEST(HttpServer, WhoDoesNotTakeHisAnswerMakesRoom) {
  auto server = HttpServer::StartWith(
      On("127.0.0.1", /*connections_max=*/3),
      {{"/", [](const std::string&) { return HttpResponse{.body = "root"}; }},
       {"/large",
        [](const std::string&) { return HttpResponse{.body = std::string(8 << 20, 'x')}; }}});
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<OwnedFd> unread;
  for (int i = 0; i < 8; ++i) {
    unread.push_back(ConnectFrom("127.0.0.1", (*server)->address().port, /*takes=*/4096));
    Say(unread.back(), "GET /large HTTP/1.1\r\n\r\n");
  }
  EXPECT_EQ(HttpGet((*server)->address(), "/").body, "root");
}

TEST(HttpServer, TellsWhoSpeaksNoTlsThatItIsWanted) {
  Refusals refusals;
  HttpServerOptions options = On("127.0.0.1");
  options.stream = [](int) -> std::unique_ptr<ClientStream> {
    ADD_FAILURE() << "a handshake has begun";
    return nullptr;
  };
  options.refused = refusals.Noting();
  auto server = HttpServer::StartWith(options, kRoot);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(HttpExchange((*server)->address().port, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
              AllOf(testing::StartsWith("HTTP/1.1 400 "), HasSubstr("https")));
  ASSERT_EQ(refusals.all().size(), 1u);
  EXPECT_EQ(refusals.all()[0].first, HttpRefusal::kPlaintext);
}

TEST(HttpServer, TellsWhomItHasRefused) {
  Refusals refusals;
  HttpServerOptions options = On("127.0.0.1");
  options.may_ask = [](const ClientStream&, const std::string&, const HttpRequest&) {
    return absl::UnauthenticatedError("who are you");
  };
  options.refused = refusals.Noting();
  auto server = HttpServer::StartWith(options, kRoot);
  ASSERT_TRUE(server.ok()) << server.status();
  const uint16_t port = (*server)->address().port;
  EXPECT_THAT(HttpExchange(port, kAskRoot), HasSubstr(" 401 "));
  EXPECT_THAT(HttpExchange(port, "GET /\x1b HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n"),
              Not(HasSubstr("root")));
  EXPECT_THAT(HttpExchange(port, "GET / HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n"),
              HasSubstr(" 401 "));
  const auto all = refusals.all();
  ASSERT_GE(all.size(), 2u);
  EXPECT_EQ(all.front().first, HttpRefusal::kUnauthorized);
  EXPECT_EQ(all.back().first, HttpRefusal::kToken);
  EXPECT_THAT(all.back().second, AllOf(testing::StartsWith("127.0.0.1:"),
                                       HasSubstr(" /: who are you"), Not(HasSubstr("Bearer"))));
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
