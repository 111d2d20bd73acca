// Everything that can be set about coordd's decisions, with its default and why it is that.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/protocol/slot_dictionary.h"

namespace coordd {

inline constexpr int64_t kMaxScheduleAfterSteps = 4096;  // more is never

struct ServerOptions {
  // Limits of a job whose first member names none. A job forms once min_workers are there and the
  // window has closed.
  int32_t min_workers = 1;
  int32_t max_workers = 0;  // 0: no limit
  // Time after the last join before a generation forms with fewer than max_workers. At max_workers
  // it is 0.
  absl::Duration settling_window = absl::Seconds(1);
  absl::Duration settling_window_after_loss = absl::Milliseconds(20);

  // How long the survivors of a generation wait for min_workers to be there again. Ten minutes: a
  // node is restarted and its processes are started in less. Then the job ends.
  absl::Duration reform_timeout = absl::Minutes(10);
  // How many generations may follow the first one of a job; then a loss is its end. 0: no limit.
  int32_t reset_limit = 0;

  absl::Duration heartbeat_interval = absl::Seconds(2);
  absl::Duration lease = absl::Seconds(10);  // at least twice the interval
  // Members of a job that was known when coordd was started have a lease and this long to come
  // back: two attempts of a worker that looks for coordd every two seconds.
  absl::Duration resume_grace = absl::Seconds(5);

  // A tensor that some ranks have submitted and others have not is reported after stall_warning and
  // becomes an error on all ranks after stall_abort. Five minutes: longer than a validation pass on
  // one rank usually takes, shorter than a night.
  absl::Duration stall_warning = absl::Seconds(10);
  absl::Duration stall_abort = absl::Minutes(5);

  // What a program has done the same in so many steps is executed by schedule, without asking
  // coordd. 0: never.
  int64_t schedule_after_steps = 3;

  // Tensors of each process set that have a number, by which reports and plans call them. A model
  // has some hundred to some thousand; the oldest make room. 0: none have.
  int64_t slots = kDefaultSlots;

  int64_t max_batch_bytes = int64_t{128}
                            << 20;  // fusion; a larger single tensor is a batch of its own

  // Bounds of what a client can make coordd remember.
  int32_t max_jobs = 1024;
  // That run and were made by one identity, unless it is an operator's: so that there is room for
  // others, also where all workers have one certificate.
  int32_t max_jobs_per_owner = 256;
  int32_t max_workers_per_job = 131072;
  int64_t max_pending_tensors_per_job = 1 << 20;
  // What they take in coordd, names above all: 100,000 tensors of 10,000 ranks take 200 MiB.
  int64_t max_pending_bytes_per_job = int64_t{256} << 20;
  int64_t max_store_keys_per_job = 1 << 20;
  int64_t max_store_bytes_per_job = int64_t{256} << 20;  // keys and values together
  // Of all jobs of one owner together, without TLS of all jobs: what is pending, and what is
  // stored. So that coordd stays below 512 MiB whatever one of them does.
  int64_t max_bytes_per_owner = int64_t{384} << 20;
  absl::Duration ended_job_retention =
      absl::Hours(1);  // how long status shows a job after its last member left

  // INVALID_ARGUMENT: names the option, what was given and what is expected.
  absl::Status Validate() const;
};

}  // namespace coordd
