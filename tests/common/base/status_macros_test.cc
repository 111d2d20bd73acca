#include "common/base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

absl::Status Forward(absl::Status status, bool* went_on) {
  COORDD_RETURN_IF_ERROR(status);
  *went_on = true;
  return absl::OkStatus();
}

absl::StatusOr<int> Doubled(absl::StatusOr<std::unique_ptr<int>> input) {
  COORDD_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, std::move(input));
  return *value * 2;
}

TEST(ReturnIfError, ReturnsTheError) {
  bool went_on = false;
  EXPECT_EQ(Forward(absl::AbortedError("over"), &went_on), absl::AbortedError("over"));
  EXPECT_FALSE(went_on);
}

TEST(ReturnIfError, GoesOnWhenOk) {
  bool went_on = false;
  EXPECT_THAT(Forward(absl::OkStatus(), &went_on), IsOk());
  EXPECT_TRUE(went_on);
}

TEST(AssignOrReturn, MovesTheValueOut) {
  EXPECT_THAT(Doubled(std::make_unique<int>(21)), IsOkAndHolds(42));
}

TEST(AssignOrReturn, ReturnsTheError) {
  EXPECT_THAT(Doubled(absl::NotFoundError("no such job")),
              StatusIs(absl::StatusCode::kNotFound, ::testing::StrEq("no such job")));
}

}  // namespace
}  // namespace coordd
