#include "common/grpc/coordinator_failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

const absl::Status kClosed = absl::UnavailableError(
    "failed to connect to all addresses; last error: UNKNOWN: Socket closed");
const absl::Status kFull = absl::UnavailableError("coordd takes no more connections: all 10");

TEST(CoordinatorFailure, IsFinalWhereTheProbeFindsWhatNoWaitingMends) {
  CoordinatorFailure failure([] { return absl::FailedPreconditionError("is no coordd"); });
  EXPECT_THAT(failure.Explain(kClosed),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is no coordd")));
}

TEST(CoordinatorFailure, TakesAnEndWithoutAWordForARefusedCertificateOnlyWhenItRepeats) {
  absl::Status found = absl::AbortedError("does not take");
  CoordinatorFailure failure([&found] { return found; });
  EXPECT_THAT(failure.Explain(kClosed),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("does not take")));
  EXPECT_THAT(failure.Explain(kClosed),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("does not take")));
  found = absl::UnavailableError("it closes");  // a crowd's end
  EXPECT_THAT(failure.Explain(kClosed),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("it closes")));
  CoordinatorFailure again([] { return absl::AbortedError("does not take"); });
  again.Explain(kClosed).IgnoreError();
  again.Explain(kClosed).IgnoreError();
  EXPECT_THAT(again.Explain(kClosed),
              StatusIs(absl::StatusCode::kUnauthenticated, HasSubstr("does not take")));
}

TEST(CoordinatorFailure, KeepsWhatCoorddSaidWhenLaterTriesAreOnlyClosed) {
  CoordinatorFailure failure([] { return absl::UnavailableError("it closes"); });
  EXPECT_THAT(failure.Explain(kFull),
              StatusIs(absl::StatusCode::kUnavailable, std::string(kFull.message())));
  EXPECT_THAT(failure.Explain(kClosed),
              StatusIs(absl::StatusCode::kUnavailable, std::string(kFull.message())));
  EXPECT_THAT(failure.Explain(absl::DeadlineExceededError("Deadline Exceeded")),
              StatusIs(absl::StatusCode::kUnavailable, std::string(kFull.message())));
}

TEST(CoordinatorFailure, ForgetsItWhenNobodyListensAnyMore) {
  CoordinatorFailure failure(nullptr);
  failure.Explain(kFull).IgnoreError();
  EXPECT_THAT(failure.Explain(absl::UnavailableError(
                  "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
                  "Failed to connect to remote host: Connection refused")),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("it cannot be reached: Connection refused")));
}

TEST(CoordinatorFailure, NamesAHostThatIsNotKnown) {
  CoordinatorFailure failure(nullptr);
  EXPECT_THAT(
      failure.Explain(absl::UnavailableError(
          "DNS resolution failed for launch:29650: C-ares status is not ARES_SUCCESS qtype=A "
          "name=launch is_balancer=0: Domain name not found")),
      StatusIs(absl::StatusCode::kUnavailable, "the host name launch is not known here"));
}

TEST(CoordinatorFailure, ProbesLessAndLessOften) {
  int probes = 0;
  CoordinatorFailure failure([&probes] {
    ++probes;
    return absl::UnavailableError("it closes");
  });
  for (int i = 0; i < 1024; ++i) failure.Explain(kClosed).IgnoreError();
  EXPECT_EQ(probes, 12);  // 1, 2, 3, 4, 8, ... 1024
}

}  // namespace
}  // namespace coordd
