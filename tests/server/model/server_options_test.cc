#include "server/model/server_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/support/status_matchers.h"

namespace coordd {
namespace {

using ::testing::HasSubstr;

TEST(ServerOptions, DefaultsAreValid) { EXPECT_THAT(ServerOptions{}.Validate(), IsOk()); }

struct Wrong {
  std::function<void(ServerOptions&)> set;
  std::string sentence;
};

TEST(ServerOptions, EachWrongValueIsNamedWithWhatIsExpected) {
  const std::vector<Wrong> cases = {
      {[](ServerOptions& o) { o.min_workers = 0; }, "min_workers is 0, expected 1 to"},
      {[](ServerOptions& o) { o.min_workers = 4, o.max_workers = 2; },
       "max_workers is 2, expected 0 (no limit) or min_workers 4 to"},
      {[](ServerOptions& o) { o.settling_window = -absl::Seconds(1); },
       "settling_window is -1s, expected 0 to 1h"},
      {[](ServerOptions& o) { o.settling_window_after_loss = absl::Hours(2); },
       "settling_window_after_loss is 2h"},
      {[](ServerOptions& o) { o.heartbeat_interval = absl::ZeroDuration(); },
       "heartbeat_interval is 0"},
      {[](ServerOptions& o) { o.lease = absl::Seconds(3); },
       "lease is 3s, expected at least twice the heartbeat_interval of 2s"},
      {[](ServerOptions& o) { o.stall_warning = absl::ZeroDuration(); }, "stall_warning is 0"},
      {[](ServerOptions& o) { o.stall_abort = absl::Seconds(5); },
       "stall_abort is 5s, expected at least stall_warning 10s"},
      {[](ServerOptions& o) { o.stall_abort = absl::InfiniteDuration(); }, "stall_abort is inf"},
      {[](ServerOptions& o) { o.max_batch_bytes = 0; }, "max_batch_bytes is 0"},
      {[](ServerOptions& o) { o.max_jobs = 0; }, "max_jobs is 0, expected at least 1"},
      {[](ServerOptions& o) { o.max_workers_per_job = 0; }, "max_workers_per_job is 0"},
      {[](ServerOptions& o) { o.max_workers_per_job = (1 << 20) + 1; },
       "max_workers_per_job is 1048577, expected 1 to 1048576"},
      {[](ServerOptions& o) { o.max_pending_tensors_per_job = 0; }, "max_pending_tensors_per_job"},
      {[](ServerOptions& o) { o.max_pending_bytes_per_job = 0; }, "max_pending_bytes_per_job is 0"},
      {[](ServerOptions& o) { o.max_bytes_per_owner = 0; }, "max_bytes_per_owner is 0"},
      {[](ServerOptions& o) { o.max_store_keys_per_job = 0; }, "max_store_keys_per_job is 0"},
      {[](ServerOptions& o) { o.max_store_bytes_per_job = 0; }, "max_store_bytes_per_job is 0"},
      {[](ServerOptions& o) { o.ended_job_retention = -absl::Seconds(1); }, "ended_job_retention"},
  };
  for (const Wrong& wrong : cases) {
    ServerOptions options;
    wrong.set(options);
    EXPECT_THAT(options.Validate(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(wrong.sentence)));
  }
}

}  // namespace
}  // namespace coordd
