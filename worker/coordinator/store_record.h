// What this worker has put in the store, which does not outlive coordd.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/protocol/written_keys.h"

namespace coordd {

// Thread-safe; nothing blocks. A worker that comes back to a coordd that was started again says it
// (ResumeReport). An answer that arrives behind that and was taken down then would be lost with the
// coordd that gave it, although its caller relied on it: so it is not.
class StoreRecord {
 public:
  // How often it was reported: before a call is sent.
  int64_t reports() const;
  // Takes down what coordd has answered. False, and nothing is taken down: it was reported since.
  bool Note(int64_t reports, absl::FunctionRef<void(WrittenKeys&)> note);
  WrittenReport Report();
  // Forgets the keys that coordd has deleted by itself, which begin with `prefix`. Empty: none.
  void Forget(absl::string_view prefix);

 private:
  // Guarded by mu_.
  mutable Mutex mu_;
  WrittenKeys written_ ABSL_GUARDED_BY(mu_);
  int64_t reports_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace coordd
