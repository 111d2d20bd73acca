#include "worker/coordinator/grpc_store.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordd/v1/store.grpc.pb.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

// A coordd that answers writes from epoch 1 on, and that is another one, of a higher epoch, as
// often as `restarts` says.
class Answering final : public v1::Store::Service {
 public:
  grpc::Status Set(grpc::ServerContext*, const v1::SetRequest*,
                   v1::SetResponse* response) override {
    return Wrote(response->mutable_version());
  }
  grpc::Status Add(grpc::ServerContext*, const v1::AddRequest* request,
                   v1::AddResponse* response) override {
    response->set_sum(request->delta());
    return Wrote(response->mutable_version());
  }
  grpc::Status Append(grpc::ServerContext*, const v1::AppendRequest* request,
                      v1::AppendResponse* response) override {
    if (request->wants_value()) response->set_value("all of it");
    return Wrote(response->mutable_version());
  }
  grpc::Status CompareSet(grpc::ServerContext*, const v1::CompareSetRequest*,
                          v1::CompareSetResponse* response) override {
    response->set_value("another");
    return grpc::Status::OK;
  }
  grpc::Status Look(grpc::ServerContext*, const v1::LookRequest*,
                    v1::LookResponse* response) override {
    if (restarts > 0) {
      --restarts;
      ++epoch;
    }
    response->set_epoch(epoch);
    return grpc::Status::OK;
  }
  int restarts = 0;
  int64_t epoch = 1;
  int64_t writes = 0;
  std::function<void()> before_answer = [] {};

 private:
  grpc::Status Wrote(v1::StoreVersion* version) {
    version->set_epoch(epoch);
    version->set_number(++writes);
    before_answer();
    return grpc::Status::OK;
  }
};

class GrpcStoreTest : public ::testing::Test {
 protected:
  GrpcStoreTest() {
    int port = 0;
    server_ = grpc::ServerBuilder()
                  .AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port)
                  .RegisterService(&coordd_)
                  .BuildAndStart();
    const auto channel =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
    store_ =
        NewGrpcStore([channel] { return channel; }, {"train", "secret"}, Clock::Real(), record_);
  }
  // The worker comes back to a coordd while the first write is answered.
  void ReportOnce() {
    coordd_.before_answer = [this] {
      if (coordd_.writes == 1) record_->Report();
    };
  }
  static absl::Time Soon() { return Clock::Real().Now() + absl::Minutes(1); }
  // "value@epoch.number" of the only key.
  std::string Known() {
    const WrittenReport report = record_->Report();
    if (report.stored.size() != 1) return absl::StrCat(report.stored.size(), " keys");
    const v1::StoredKey& key = report.stored[0];
    return absl::StrCat(key.value(), key.sum() == 0 ? "" : absl::StrCat(key.total()), "@",
                        key.version().epoch(), ".", key.version().number());
  }

  Answering coordd_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<StoreRecord> record_ = std::make_shared<StoreRecord>();
  std::unique_ptr<Store> store_;
};

TEST_F(GrpcStoreTest, TakesDownWhatIsAnswered) {
  ASSERT_THAT(store_->Set("k", "v", Soon()), IsOk());
  EXPECT_EQ(Known(), "v@1.1");
  ASSERT_THAT(store_->Append("k", "it", Soon()).status(), IsOk());
  EXPECT_EQ(Known(), "all of it@1.2");
  ASSERT_THAT(store_->CompareSet("k", "v", "w", Soon()).status(), IsOk());
  EXPECT_EQ(Known(), "all of it@1.2") << "another was found";
}

TEST_F(GrpcStoreTest, AnAnswerBehindAReportCountsWhereTheSameCoorddIsThere) {
  ReportOnce();
  ASSERT_THAT(store_->Add("n", 5, Soon()).status(), IsOk());
  EXPECT_EQ(Known(), "5@1.1");
  EXPECT_EQ(coordd_.writes, 1);
}

TEST_F(GrpcStoreTest, AnAddWhoseCoorddIsGoneIsNotKnown) {
  ReportOnce();
  coordd_.restarts = 1;
  EXPECT_THAT(store_->Add("n", 5, Soon()).status(),
              StatusIs(Code::kUnavailable, HasSubstr("is not known")));
  EXPECT_EQ(Known(), "0 keys");
  EXPECT_EQ(coordd_.writes, 1);
}

TEST_F(GrpcStoreTest, ASetWhoseCoorddIsGoneIsMadeAgain) {
  ReportOnce();
  coordd_.restarts = 1;
  ASSERT_THAT(store_->Set("k", "v", Soon()), IsOk());
  EXPECT_EQ(Known(), "v@2.2");
  EXPECT_EQ(coordd_.writes, 2);
}

}  // namespace
}  // namespace coordd
