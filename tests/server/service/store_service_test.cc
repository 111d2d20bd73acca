#include "server/service/store_service.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>

#include "common/base/log_limit.h"
#include "tests/support/test_server.h"

namespace coordd {
namespace {

using testing::HasSubstr;

class StoreServiceTest : public testing::Test {
 protected:
  StoreServiceTest() : worker_(server_.Channel()), stub_(v1::Store::NewStub(server_.Channel())) {
    EXPECT_TRUE(worker_.Join("train", "a", 1));
    EXPECT_TRUE(worker_.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  }

  template <typename Request>
  static Request For(const std::string& token = "secret") {
    Request request;
    request.mutable_caller()->set_job("train");
    request.mutable_caller()->set_token(token);
    return request;
  }
  grpc::Status Set(const std::string& key, const std::string& value,
                   const std::string& token = "secret") {
    auto request = For<v1::SetRequest>(token);
    request.set_key(key);
    request.set_value(value);
    grpc::ClientContext context;
    context.set_deadline(TestDeadline());
    v1::SetResponse response;
    return stub_->Set(&context, request, &response);
  }
  grpc::Status Get(const std::string& key, std::string* value,
                   std::chrono::system_clock::time_point deadline = TestDeadline()) {
    auto request = For<v1::GetRequest>();
    request.set_key(key);
    grpc::ClientContext context;
    context.set_deadline(deadline);
    v1::GetResponse response;
    const grpc::Status status = stub_->Get(&context, request, &response);
    *value = response.value();
    return status;
  }
  void AwaitMetric(const std::string& line) {
    while (server_.Get("/metrics").body.find(line + "\n") == std::string::npos)
      std::this_thread::yield();
  }

  TestServer server_;
  RawWorker worker_;
  std::unique_ptr<v1::Store::Stub> stub_;
};

TEST_F(StoreServiceTest, KeepsValuesOfAnyBytes) {
  const std::string bytes("\0\xff\n", 3);
  ASSERT_TRUE(Set("address/0", bytes).ok());
  std::string value;
  ASSERT_TRUE(Get("address/0", &value).ok());
  EXPECT_EQ(value, bytes);
}

TEST_F(StoreServiceTest, AnswersAWaitingGetOnceTheKeyIsSet) {
  std::string value;
  auto waiting = std::async(std::launch::async, [&] { return Get("later", &value); });
  AwaitMetric("coordd_store_calls_waiting 1");
  ASSERT_TRUE(Set("later", "now").ok());
  EXPECT_TRUE(waiting.get().ok());
  EXPECT_EQ(value, "now");
}

TEST_F(StoreServiceTest, ForgetsAGetWhoseDeadlineHasPassed) {
  std::string value;
  const grpc::Status status =
      Get("never", &value, std::chrono::system_clock::now() + std::chrono::milliseconds(20));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitMetric("coordd_store_calls_waiting 0");
  EXPECT_TRUE(Set("never", "too late").ok());
}

TEST_F(StoreServiceTest, AddsAndDeletes) {
  auto add = For<v1::AddRequest>();
  add.set_key("count");
  add.set_delta(41);
  v1::AddResponse sum;
  for (int64_t expected : {41, 82}) {
    grpc::ClientContext context;
    context.set_deadline(TestDeadline());
    ASSERT_TRUE(stub_->Add(&context, add, &sum).ok());
    EXPECT_EQ(sum.sum(), expected);
  }
  auto remove = For<v1::DeletePrefixRequest>();
  remove.set_prefix("co");
  grpc::ClientContext context;
  context.set_deadline(TestDeadline());
  v1::DeletePrefixResponse removed;
  ASSERT_TRUE(stub_->DeletePrefix(&context, remove, &removed).ok());
  EXPECT_EQ(removed.deleted(), 1);
}

TEST_F(StoreServiceTest, RefusesCallsWithoutADeadline) {
  auto request = For<v1::GetRequest>();
  request.set_key("never");
  grpc::ClientContext context;
  v1::GetResponse response;
  const grpc::Status status = stub_->Get(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("deadline"));
}

TEST_F(StoreServiceTest, RefusesStrangersAndWhatIsTooLarge) {
  EXPECT_EQ(Set("key", "value", "guess").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  AwaitMetric("coordd_calls_denied_total{call=\"Store\",role=\"operator\"} 1");
  EXPECT_EQ(Set("", "value").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Set(std::string(257, 'k'), "value").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Set("key", std::string((64 << 10) + 1, 'v')).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(StoreServiceLimits, WritesWhoWasRefusedForWantOfRoomButNotEachTime) {
  CoordServerOptions options = TestServerOptions();
  options.decisions.max_store_keys_per_job = 1;
  TestServer server(options);
  RawWorker worker(server.Channel());
  ASSERT_TRUE(worker.Join("train", "a", 1));
  ASSERT_TRUE(worker.ReadUntil(v1::CoordinatorMessage::kMembership).has_membership());
  const auto stub = v1::Store::NewStub(server.Channel());
  v1::SetRequest request;
  request.mutable_caller()->set_job("train");
  request.mutable_caller()->set_token("secret");
  testing::internal::CaptureStderr();
  int refused = 0;
  for (int i = 0; i < 20 * LogLimit::kBurst; ++i) {
    request.set_key("key" + std::to_string(i));
    grpc::ClientContext context;
    context.set_deadline(TestDeadline());
    v1::SetResponse response;
    const grpc::Status status = stub->Set(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) ++refused;
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(refused, 20 * LogLimit::kBurst - 1);
  const std::string first = "job train: a call of the store (set) was refused: key key1: ";
  EXPECT_THAT(log, HasSubstr(first + "job train has 1 key already, the most that it may have ("));
  EXPECT_THAT(log, testing::ContainsRegex("have \\([a-z0-9:]*127.0.0.1:[0-9]+\\)"));
  int lines = 0;
  for (size_t at = 0; (at = log.find("of the store (set)", at)) != log.npos; ++at) ++lines;
  EXPECT_GE(lines, LogLimit::kBurst);
  EXPECT_LT(lines, refused / 2);
}

TEST_F(StoreServiceTest, AnswersEveryWaitingGetWhenItStops) {
  std::string values[8];
  std::vector<std::future<grpc::Status>> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(std::async(std::launch::async, [this, i, &values] {
      return Get(absl::StrCat("never/", i), &values[i]);
    }));
  }
  AwaitMetric("coordd_store_calls_waiting 8");
  server_->Stop("the test stops it");
  for (auto& call : waiting) EXPECT_EQ(call.get().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace coordd
