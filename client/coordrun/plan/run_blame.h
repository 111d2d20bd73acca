// Who is the cause of a run's end. PURE
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "client/coordrun/process/process_end.h"

namespace coordd {

// Not thread-safe; `now` must not decrease. Once the blame is final it stays with whom it is; at
// most the program's own words are added.
//
// When one worker is killed, the others may be quicker to fail for lack of it than the kernel is to
// say so: a death by a signal counts as the first failure if it comes to light within kWindow of an
// exit with a status, or of an abort, which is how uncaught errors of the others end.
class RunBlame {
 public:
  static constexpr absl::Duration kWindow = absl::Milliseconds(300);

  // The first failure. REQUIRES: nobody has failed.
  void Fail(int32_t worker, const ProcessEnd& end, absl::Time now);
  // Another one, which may take the place of the first.
  void FailToo(int32_t worker, const ProcessEnd& end, absl::Time now);
  // It has ended well, but so that the others cannot go on; `reason` completes "rank 2 ...".
  // REQUIRES: nobody has failed.
  void Accuse(int32_t worker, const std::string& reason, absl::Time now);
  // coordd has seen that this one failed first, and what its program has said, if it has. Nothing,
  // unless somebody has failed by itself.
  void Learn(int32_t worker, const std::string& says);
  // From now on signals are coordrun's own.
  void Close() { is_final_ = true; }
  // The run is being ended. Without a failure there is nobody to blame.
  void Tick(absl::Time now) {
    if (!worker_ || now >= window_end_) Close();
  }

  const std::optional<int32_t>& worker() const { return worker_; }
  bool is_final() const { return is_final_; }
  absl::Time NextDeadline() const { return is_final_ ? absl::InfiniteFuture() : window_end_; }
  const std::string& reason() const { return reason_; }  // Accuse's; empty: its end tells
  const std::string& says() const { return says_; }      // "ValueError: bad batch"; or empty

 private:
  std::optional<int32_t> worker_;
  bool is_cause_ = false;  // its end is none that lacking another one leads to
  absl::Time window_end_ = absl::InfiniteFuture();
  bool is_final_ = false;
  std::string reason_, says_;
};

}  // namespace coordd
