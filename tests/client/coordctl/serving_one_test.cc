#include "client/coordctl/serving_one.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ServingOneTest : public ::testing::Test {
 protected:
  absl::StatusOr<Target> Choose() {
    return ServingOne(
        target_,
        [this](const std::string& address) {
          ++looks_;
          clock_.Advance(kServesWithin / 2);
          return at_[address];
        },
        clock_);
  }

  FakeClock clock_{absl::UnixEpoch()};
  Target target_{.address = "a:1", .tls = {}, .token = "secret", .standbys = {"b:2"}};
  std::map<std::string, absl::Status> at_;
  int looks_ = 0;
};

TEST_F(ServingOneTest, TakesTheFirstThatServes) {
  ASSERT_TRUE(Choose().ok());
  EXPECT_EQ(Choose()->address, "a:1");
  at_["a:1"] = absl::UnavailableError("nothing listens there");
  const auto serving = Choose();
  ASSERT_TRUE(serving.ok());
  EXPECT_EQ(serving->AddressText(), "b:2");
  EXPECT_EQ(serving->token, "secret");
}

TEST_F(ServingOneTest, SaysWhatIsAtEachWhereNoneServes) {
  at_["a:1"] = absl::UnavailableError("nothing listens there");
  at_["b:2"] = absl::UnavailableError("it does not answer");
  EXPECT_THAT(Choose(), StatusIs(absl::StatusCode::kUnavailable,
                                 AllOf(HasSubstr("none of the 2 coordds"),
                                       HasSubstr("a:1: nothing listens there"),
                                       HasSubstr("b:2: it does not answer"))));
}

TEST_F(ServingOneTest, WaitsForNothingThatWaitingDoesNotMend) {
  at_["a:1"] = absl::UnavailableError("nothing listens there");
  at_["b:2"] = absl::UnauthenticatedError("its certificate is another authority's");
  EXPECT_THAT(Choose(), StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("a:1: nothing")));
  EXPECT_EQ(looks_, 2);
}

}  // namespace
}  // namespace coordd
