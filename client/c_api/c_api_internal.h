// What the files behind coordd.h share: the handles, and the border between absl::Status with
// exceptions of the standard library on this side and numbers with a text on the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/c_api/coordd.h"
#include "client/c_api/known_groups.h"
#include "common/base/mutex.h"
#include "worker/api/worker.h"
#include "worker/execute/work.h"

struct coordd_worker {
  // Constant after construction.
  const std::unique_ptr<coordd::Worker> worker;
  const std::string metrics_address;

  coordd::KnownGroups groups;  // thread-safe by itself

  // Guarded by mu.
  coordd::Mutex mu;
  std::map<int32_t, int64_t> unnamed_barriers ABSL_GUARDED_BY(mu);  // by process set

  explicit coordd_worker(std::unique_ptr<coordd::Worker> w)
      : worker(std::move(w)), metrics_address(worker->metrics_address()) {}

  // The number of the next unnamed barrier: 0, 1, ..., and from 0 again, so that names that repeat
  // are recognised.
  int64_t CountUnnamedBarrier(int32_t process_set) {
    constexpr int64_t kMaxUnnamedBarriers = 64;  // of one set, under way on this rank
    coordd::MutexLock lock(&mu);
    return unnamed_barriers[process_set]++ % kMaxUnnamedBarriers;
  }
};

struct coordd_work {  // constant after construction
  const std::shared_ptr<coordd::Work> work;
  void* const output;  // the caller's buffer; nullptr: the work owns the result
  // In the child of a fork the threads that complete works are not there: waiting would never end.
  bool InForkedChild() const { return work->in_forked_child(); }
};

namespace coordd {

// Drops the held goodbye of a worker that is about to be freed.
void ForgetHeldGoodbye(Worker* worker);

// Keeps the text for coordd_last_error() of this thread and returns the code. REQUIRES: !ok().
coordd_status_t Fail(const absl::Status& status);

// Runs the body of an exported function, which returns absl::Status.
template <typename Body>
coordd_status_t AtBorder(Body body) noexcept {
  try {
    const absl::Status status = body();
    return status.ok() ? COORDD_OK : Fail(status);
  } catch (const std::bad_alloc&) {
    return COORDD_RESOURCE_EXHAUSTED;  // a text would need memory
  } catch (const std::exception& e) {
    return Fail(absl::InternalError(absl::StrCat("an exception reached the C border: ", e.what())));
  }
}

// A structure of the caller as this library's own: members that the caller's header does not know
// are zero. INVALID_ARGUMENT: `from` is not initialised, or it sets members that this library does
// not know.
template <typename T>
absl::StatusOr<T> CopyIn(const T* from, absl::string_view what) {
  T copy{};
  if (from == nullptr) {
    copy.struct_size = sizeof(T);
    return copy;
  }
  const size_t given = from->struct_size;
  if (given < sizeof(size_t)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": struct_size is ", given,
                                                   "; initialise it with the macro of coordd.h"));
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (size_t i = sizeof(T); i < given; ++i) {
    if (bytes[i] != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": sets a member that coordd ", coordd_version(),
                       " does not know; it was compiled against a newer coordd.h"));
    }
  }
  std::memcpy(&copy, bytes, std::min(given, sizeof(T)));
  return copy;
}

// The other direction: fills what the caller's header knows. INVALID_ARGUMENT: as above.
template <typename T>
absl::Status CopyOut(const T& value, T* to, absl::string_view what) {
  if (to == nullptr || to->struct_size < sizeof(size_t)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": is NULL or not initialised with the macro of coordd.h"));
  }
  const size_t given = to->struct_size;
  std::memcpy(static_cast<void*>(to), &value, std::min(given, sizeof(T)));
  to->struct_size = given;
  return absl::OkStatus();
}

// INVALID_ARGUMENT: negative or not a number.
absl::StatusOr<absl::Duration> TimeoutFromSeconds(double seconds);

absl::Status NullArgument(absl::string_view name);
absl::Status ForkedChild(absl::string_view what);

}  // namespace coordd
