// Matchers for absl::Status and absl::StatusOr: EXPECT_THAT(store.Get(...), IsOkAndHolds("x")),
// EXPECT_THAT(status, StatusIs(absl::StatusCode::kAborted, HasSubstr("rank 2"))).
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace coordd::testing_support {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

}  // namespace coordd::testing_support

namespace coordd {

MATCHER(IsOk, "is OK") {
  *result_listener << testing_support::StatusOf(arg).ToString();
  return testing_support::StatusOf(arg).ok();
}

MATCHER_P(IsOkAndHolds, value, "is OK and holds the given value") {
  if (!arg.ok()) {
    *result_listener << arg.status().ToString();
    return false;
  }
  return ::testing::ExplainMatchResult(value, *arg, result_listener);
}

MATCHER_P2(StatusIs, code, message, "has the given code and message") {
  const absl::Status& status = testing_support::StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

}  // namespace coordd
