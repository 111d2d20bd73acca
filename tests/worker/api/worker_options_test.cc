#include "worker/api/worker_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

WorkerOptions Valid() {
  WorkerOptions options;
  options.coordinator = {"launch", 29650};
  return options;
}

TEST(WorkerOptions, AreChecked) {
  EXPECT_THAT(Valid().Validate(), IsOk());
  WorkerOptions options;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_ADDR")));
  options.auto_coordinator = true;
  EXPECT_THAT(options.Validate(), IsOk());
  options = Valid();
  options.job = "a/b";
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a/b")));
  options.job = "a\nb";  // for a terminal
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a\\nb")));
  options = Valid();
  options.min_workers = 4;
  options.max_workers = 2;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4 to 2")));
  options = Valid();
  options.token = std::string(257, 'x');
  EXPECT_THAT(options.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("token")));
  options = Valid();
  options.fusion_buffer_bytes = 1;
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fusion")));
  options = Valid();
  options.collective_timeout = absl::ZeroDuration();
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("COORDD_TIMEOUT")));
  options = Valid();
  options.node_session = "unix:/" + std::string(106, 'x');
  EXPECT_THAT(options.Validate(), IsOk());
  options.node_session += "x";
  EXPECT_THAT(options.Validate(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at most 107 bytes")));
}

}  // namespace
}  // namespace coordd
