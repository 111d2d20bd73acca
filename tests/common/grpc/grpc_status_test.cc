#include "common/grpc/grpc_status.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace coordd {
namespace {

absl::Status NotConnected(const char* why) {
  return absl::UnavailableError(absl::StrCat(
      "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:10.0.0.1:4411: ", why));
}

TEST(WasTurnedAway, WhereTheOtherSideClosesWhatHasBegun) {
  EXPECT_TRUE(WasTurnedAway(NotConnected("recvmsg:Connection reset by peer")));
  EXPECT_TRUE(WasTurnedAway(NotConnected("Socket closed")));
}

TEST(WasTurnedAway, IsNothingThatAnotherTryMeetsAgain) {
  EXPECT_FALSE(WasTurnedAway(NotConnected("Failed to connect to remote host: Connection refused")));
  EXPECT_FALSE(WasTurnedAway(NotConnected("Ssl handshake failed: certificate verify failed")));
  EXPECT_FALSE(WasTurnedAway(absl::UnavailableError("coordd takes no more connections")));
  EXPECT_FALSE(WasTurnedAway(absl::OkStatus()));
}

// Its call may have been executed.
TEST(WasTurnedAway, IsNothingThatWasConnected) {
  EXPECT_FALSE(WasTurnedAway(absl::UnavailableError("Socket closed")));
}

TEST(WasNeverSent, WhereThereWasNoConnection) {
  EXPECT_TRUE(WasNeverSent(NotConnected("Failed to connect to remote host: Connection refused")));
  EXPECT_FALSE(WasNeverSent(absl::UnavailableError("recvmsg:Connection reset by peer")));
  EXPECT_FALSE(WasNeverSent(absl::OkStatus()));
}

TEST(FromCoordd, WhatGrpcEndsInNeedIsTriedAgain) {
  for (const auto code : {grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::INTERNAL})
    EXPECT_TRUE(absl::IsUnavailable(FromCoordd({code, "Received RST_STREAM with error code 11"})));
}

TEST(FromCoordd, WhatCoorddSaysIsOneLine) {
  for (const auto code : {grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::UNAVAILABLE}) {
    EXPECT_EQ(FromCoordd({code, "away\ncoordd-worker I 10:00:00 all is well\x1b[0m"}).message(),
              "away coordd-worker I 10:00:00 all is well [0m");
  }
}

TEST(FromCoordd, WhatCoorddSaysIsKept) {
  EXPECT_TRUE(absl::IsResourceExhausted(
      FromCoordd({grpc::StatusCode::RESOURCE_EXHAUSTED, "coordd has 262144 sessions"})));
  EXPECT_TRUE(absl::IsCancelled(
      FromCoordd({grpc::StatusCode::CANCELLED, "Received RST_STREAM with error code 8"})));
}

}  // namespace
}  // namespace coordd
