#include "worker/coordinator/store_record.h"

namespace coordd {

int64_t StoreRecord::reports() const {
  MutexLock lock(&mu_);
  return reports_;
}

bool StoreRecord::Note(int64_t reports, absl::FunctionRef<void(WrittenKeys&)> note) {
  MutexLock lock(&mu_);
  if (reports != reports_) return false;
  note(written_);
  return true;
}

WrittenReport StoreRecord::Report() {
  MutexLock lock(&mu_);
  ++reports_;
  return written_.Report();
}

void StoreRecord::Forget(absl::string_view prefix) {
  MutexLock lock(&mu_);
  written_.Forget(prefix);
}

}  // namespace coordd
