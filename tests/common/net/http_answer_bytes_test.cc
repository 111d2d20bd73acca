// Clients that ask for large pages and do not read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "common/net/http_server.h"
#include "tests/support/http_client.h"

namespace coordd {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::StartsWith;

HttpHandler Page(size_t bytes) {
  return [bytes](const std::string&) { return HttpResponse{.body = std::string(bytes, 'x')}; };
}

// With room for two answers of 12 MiB, which no socket takes by itself.
class HttpAnswerBytes : public testing::Test {
 protected:
  void Start(absl::Duration undisturbed) {
    HttpServerOptions options;
    options.address = {"127.0.0.1", 0};
    options.answer_bytes_max = 32 << 20;
    options.answer_undisturbed = undisturbed;
    options.refused = [this](HttpRefusal why, const std::string&, const std::string& said) {
      EXPECT_EQ(why, HttpRefusal::kAnswers);
      MutexLock lock(&mu_);
      refusals_.push_back(said);
    };
    auto server =
        HttpServer::StartWith(options, {{"/15KiB", Page(15 << 10)},
                                        {"/12MiB",
                                         [this](const std::string&) {
                                           ++made_;
                                           return HttpResponse{.body = std::string(12 << 20, 'x')};
                                         }},
                                        {"/80MiB", Page(80 << 20)}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::vector<OwnedFd> AskUnread(const char* path, int clients) {
    std::vector<OwnedFd> unread;
    for (int i = 0; i < clients; ++i) {
      unread.emplace_back(ConnectLoopback(server_->address().port));
      const std::string request = absl::StrCat("GET ", path, " HTTP/1.1\r\n\r\n");
      EXPECT_GT(send(unread.back().get(), request.data(), request.size(), MSG_NOSIGNAL), 0);
    }
    return unread;
  }

  HttpAnswer Get(const std::string& path) { return HttpGet(server_->address(), path); }

  std::vector<std::string> AwaitRefusals(size_t count) {
    while (true) {
      {
        MutexLock lock(&mu_);
        if (refusals_.size() >= count) return refusals_;
      }
      std::this_thread::yield();
    }
  }

  std::atomic<int> made_ = 0;  // pages of 12 MiB
  Mutex mu_;
  std::vector<std::string> refusals_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpAnswerBytes, OfAllThatAreNotReadAreBounded) {
  Start(/*undisturbed=*/absl::InfiniteDuration());
  std::vector<OwnedFd> unread = AskUnread("/12MiB", 20);
  EXPECT_THAT(AwaitRefusals(18), Each(StartsWith("its answer has 12583")));
  const int made = made_;
  const HttpAnswer refused = Get("/12MiB");
  EXPECT_EQ(made_, made);  // its size is known
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 1"));
  EXPECT_EQ(
      refused.body,
      "503: answers that others do not read have 33554432 bytes here: ask again in a second\n");
  EXPECT_EQ(AwaitRefusals(19).size(), 19);
}

TEST_F(HttpAnswerBytes, SmallOnesPassWhateverOthersDoNotRead) {
  Start(/*undisturbed=*/absl::InfiniteDuration());
  const std::vector<OwnedFd> unread = AskUnread("/12MiB", 20);
  AwaitRefusals(18);
  const std::vector<OwnedFd> small = AskUnread("/15KiB", 20);
  EXPECT_EQ(Get("/15KiB").body.size(), 15 << 10);
}

TEST_F(HttpAnswerBytes, AreGivenBackByWhoLeaves) {
  Start(/*undisturbed=*/absl::InfiniteDuration());
  std::vector<OwnedFd> unread = AskUnread("/12MiB", 20);
  AwaitRefusals(18);
  unread.clear();
  // Alone an answer has any size.
  while (Get("/80MiB").body.size() != 80 << 20) std::this_thread::yield();
  EXPECT_EQ(Get("/12MiB").body.size(), 12 << 20);
}

TEST_F(HttpAnswerBytes, ThatAreNotReadMakeRoomForThoseOfOthers) {
  Start(/*undisturbed=*/absl::ZeroDuration());
  const std::vector<OwnedFd> unread = AskUnread("/12MiB", 20);
  AwaitRefusals(18);
  EXPECT_EQ(Get("/80MiB").body.size(), 80 << 20);
  const std::vector<std::string> refusals = AwaitRefusals(20);
  EXPECT_EQ(refusals.size(), 20);
  EXPECT_THAT(refusals.back(), HasSubstr("bytes is not taken yet, and others wait"));
}

}  // namespace
}  // namespace coordd
