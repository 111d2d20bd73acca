#include "server/model/server_options.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/protocol/protocol_bounds.h"

namespace coordd {
namespace {

absl::Status Expect(bool holds, absl::string_view option, const absl::AlphaNum& found,
                    const absl::AlphaNum& expected) {
  if (holds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, " is ", found, ", expected ", expected));
}

absl::Status ExpectBetween(absl::Duration low, absl::Duration value, absl::Duration high,
                           absl::string_view option) {
  return Expect(low <= value && value <= high, option, absl::FormatDuration(value),
                absl::StrCat(absl::FormatDuration(low), " to ", absl::FormatDuration(high)));
}

absl::Status ExpectAtLeast(int64_t low, int64_t value, absl::string_view option) {
  return Expect(value >= low, option, value, absl::StrCat("at least ", low));
}

}  // namespace

absl::Status ServerOptions::Validate() const {
  COORDD_RETURN_IF_ERROR(ExpectAtLeast(1, max_jobs, "max_jobs"));
  COORDD_RETURN_IF_ERROR(ExpectAtLeast(1, max_jobs_per_owner, "max_jobs_per_owner"));
  COORDD_RETURN_IF_ERROR(Expect(1 <= max_workers_per_job && max_workers_per_job <= kMaxJobRanks,
                                "max_workers_per_job", max_workers_per_job,
                                absl::StrCat("1 to ", kMaxJobRanks)));
  COORDD_RETURN_IF_ERROR(Expect(1 <= min_workers && min_workers <= max_workers_per_job,
                                "min_workers", min_workers,
                                absl::StrCat("1 to max_workers_per_job ", max_workers_per_job)));
  COORDD_RETURN_IF_ERROR(
      Expect(max_workers == 0 || (min_workers <= max_workers && max_workers <= max_workers_per_job),
             "max_workers", max_workers,
             absl::StrCat("0 (no limit) or min_workers ", min_workers, " to max_workers_per_job ",
                          max_workers_per_job)));
  const absl::Duration day = absl::Hours(24);
  COORDD_RETURN_IF_ERROR(
      ExpectBetween(absl::ZeroDuration(), settling_window, absl::Hours(1), "settling_window"));
  COORDD_RETURN_IF_ERROR(ExpectBetween(absl::ZeroDuration(), settling_window_after_loss,
                                       absl::Hours(1), "settling_window_after_loss"));
  COORDD_RETURN_IF_ERROR(
      ExpectBetween(absl::ZeroDuration(), reform_timeout, day, "reform_timeout"));
  COORDD_RETURN_IF_ERROR(ExpectAtLeast(0, reset_limit, "reset_limit"));
  COORDD_RETURN_IF_ERROR(ExpectBetween(absl::Milliseconds(10), heartbeat_interval, absl::Hours(1),
                                       "heartbeat_interval"));
  COORDD_RETURN_IF_ERROR(Expect(resume_grace >= absl::ZeroDuration() && resume_grace <= day,
                                "resume_grace", absl::FormatDuration(resume_grace), "0 to a day"));
  COORDD_RETURN_IF_ERROR(
      Expect(lease >= 2 * heartbeat_interval && lease <= day, "lease", absl::FormatDuration(lease),
             absl::StrCat("at least twice the heartbeat_interval of ",
                          absl::FormatDuration(heartbeat_interval), " and at most a day")));
  COORDD_RETURN_IF_ERROR(
      ExpectBetween(absl::Milliseconds(10), stall_warning, 30 * day, "stall_warning"));
  COORDD_RETURN_IF_ERROR(
      Expect(stall_abort >= stall_warning && stall_abort <= 30 * day, "stall_abort",
             absl::FormatDuration(stall_abort),
             absl::StrCat("at least stall_warning ", absl::FormatDuration(stall_warning),
                          " and at most 30 days")));
  COORDD_RETURN_IF_ERROR(ExpectAtLeast(1, max_batch_bytes, "max_batch_bytes"));
  COORDD_RETURN_IF_ERROR(
      Expect(schedule_after_steps >= 0 && schedule_after_steps <= kMaxScheduleAfterSteps,
             "schedule_after_steps", absl::StrCat(schedule_after_steps),
             absl::StrCat("0 (never) to ", kMaxScheduleAfterSteps)));
  COORDD_RETURN_IF_ERROR(Expect(slots >= 0 && slots <= kMaxSlots, "slots", absl::StrCat(slots),
                                absl::StrCat("0 (none) to ", kMaxSlots)));
  COORDD_RETURN_IF_ERROR(
      ExpectAtLeast(1, max_pending_tensors_per_job, "max_pending_tensors_per_job"));
  COORDD_RETURN_IF_ERROR(ExpectAtLeast(1, max_pending_bytes_per_job, "max_pending_bytes_per_job"));
  COORDD_RETURN_IF_ERROR(ExpectAtLeast(1, max_bytes_per_owner, "max_bytes_per_owner"));
  COORDD_RETURN_IF_ERROR(ExpectAtLeast(1, max_store_keys_per_job, "max_store_keys_per_job"));
  COORDD_RETURN_IF_ERROR(ExpectAtLeast(1, max_store_bytes_per_job, "max_store_bytes_per_job"));
  return ExpectBetween(absl::ZeroDuration(), ended_job_retention, 365 * day, "ended_job_retention");
}

}  // namespace coordd
