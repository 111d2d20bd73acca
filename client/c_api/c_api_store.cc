// The job's key-value store.
#include "client/c_api/c_api_internal.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

absl::StatusOr<absl::Time> CheckedDeadline(const coordd_worker_t* worker, const char* key,
                                           double timeout_seconds) {
  if (worker == nullptr) return NullArgument("worker");
  if (key == nullptr) return NullArgument("key");
  COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout, TimeoutFromSeconds(timeout_seconds));
  return Clock::Real().Now() + timeout;
}

}  // namespace
}  // namespace coordd

using coordd::AtBorder;
using coordd::CheckedDeadline;

extern "C" {

coordd_status_t coordd_store_set(coordd_worker_t* worker, const char* key, const void* value,
                                 size_t size_bytes, double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, key, timeout_seconds));
    if (value == nullptr && size_bytes > 0) return coordd::NullArgument("value");
    if (size_bytes > static_cast<size_t>(coordd::Store::kMaxValueBytes)) {
      return absl::InvalidArgumentError(absl::StrCat("key ", key, ": a value of ", size_bytes,
                                                     " bytes: expected at most ",
                                                     coordd::Store::kMaxValueBytes));
    }
    return worker->worker->store().Set(
        key, std::string(static_cast<const char*>(value), size_bytes), deadline);
  });
}

coordd_status_t coordd_store_get(coordd_worker_t* worker, const char* key, void* buffer,
                                 size_t capacity_bytes, size_t* size_bytes,
                                 double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, key, timeout_seconds));
    if (buffer == nullptr && capacity_bytes > 0) return coordd::NullArgument("buffer");
    COORDD_ASSIGN_OR_RETURN(const std::string value, worker->worker->store().Get(key, deadline));
    if (size_bytes != nullptr) *size_bytes = value.size();
    if (value.size() > capacity_bytes) {
      return absl::OutOfRangeError(absl::StrCat("key ", key, ": its value has ", value.size(),
                                                " bytes, the buffer ", capacity_bytes));
    }
    if (!value.empty()) std::memcpy(buffer, value.data(), value.size());
    return absl::OkStatus();
  });
}

coordd_status_t coordd_store_add(coordd_worker_t* worker, const char* key, int64_t delta,
                                 int64_t* sum, double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    COORDD_ASSIGN_OR_RETURN(const absl::Time deadline,
                            CheckedDeadline(worker, key, timeout_seconds));
    COORDD_ASSIGN_OR_RETURN(const int64_t total, worker->worker->store().Add(key, delta, deadline));
    if (sum != nullptr) *sum = total;
    return absl::OkStatus();
  });
}

}  // extern "C"
