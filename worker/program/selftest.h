// `coordd-worker selftest`: every operation, dtype and operator across the ranks of a real job.
#pragma once

#include <ostream>

#include "worker/api/worker.h"

namespace coordd {

struct SelftestOptions {
  bool json = false;                           // the last line as JSON
  absl::Duration timeout = absl::Seconds(60);  // of each case
};

struct SelftestResult {
  int64_t cases = 0, tensors = 0, elements = 0;
  int64_t failures = 0;  // tensors with a wrong element, or without a result, on all ranks
  bool ok() const { return failures == 0; }
};

// Runs all cases on a started worker; every rank must. Rank 0 writes progress and a table to `out`;
// a mismatch is written by the rank that found it. Stops at an error of the generation.
SelftestResult RunSelftest(Worker& worker, const SelftestOptions& options, std::ostream& out);

}  // namespace coordd
