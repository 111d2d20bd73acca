#include "common/net/http_get.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "common/net/http_server.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

class HttpGetTest : public ::testing::Test {
 protected:
  HttpGetTest() {
    auto server = HttpServer::Start(HostPort{"127.0.0.1", 0},
                                    {{"/large", [](const std::string&) {
                                        return HttpResponse{.body = std::string(100'000, 'x')};
                                      }}});
    if (server.ok()) server_ = *std::move(server);
  }
  absl::StatusOr<std::string> Get(const char* path, size_t bytes_max = 1 << 20) {
    return HttpGet(server_->address(), path, bytes_max, Clock::Real().Now() + absl::Minutes(1),
                   Clock::Real());
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpGetTest, BringsTheBodyWhole) {
  const auto body = Get("/large");
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(body->size(), 100'000);
}

TEST_F(HttpGetTest, SaysWhatWasAnsweredInstead) {
  EXPECT_THAT(Get("/other").status(), StatusIs(Code::kUnavailable, HasSubstr("404")));
}

TEST_F(HttpGetTest, TakesNoMoreThanItIsTold) {
  EXPECT_THAT(Get("/large", 1000).status(), StatusIs(Code::kResourceExhausted, HasSubstr("1000")));
}

TEST_F(HttpGetTest, SaysThatNobodyIsThere) {
  const HostPort gone = server_->address();
  server_.reset();
  EXPECT_THAT(
      HttpGet(gone, "/", 1000, Clock::Real().Now() + absl::Minutes(1), Clock::Real()).status(),
      StatusIs(Code::kUnavailable, HasSubstr("cannot be reached")));
}

}  // namespace
}  // namespace coordd
