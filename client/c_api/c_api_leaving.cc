// Ends that are no goodbyes, and goodbyes that wait for the status of the process.
#include <stdlib.h>

#include <algorithm>
#include <vector>

#include "client/c_api/c_api_internal.h"
#include "common/base/status_macros.h"

namespace coordd {
namespace {

// Of each worker, when the process ends.
constexpr absl::Duration kAtExit = absl::Seconds(5);

// Workers whose goodbye waits for the end of the process. Thread-safe.
class HeldGoodbyes {
 public:
  // Lives as long as the process: its end is what it is for.
  static HeldGoodbyes& Instance() {
    static HeldGoodbyes* const instance = new HeldGoodbyes();
    return *instance;
  }

  // Handlers run in reverse order: this one before those of whatever was loaded until now.
  void Add(Worker* worker) {
    MutexLock lock(&mu_);
    if (!registered_) {
      registered_ =
          on_exit([](int status, void*) { Instance().ProcessEnds(status); }, nullptr) == 0;
    }
    if (std::find(workers_.begin(), workers_.end(), worker) == workers_.end())
      workers_.push_back(worker);
  }

  void Remove(Worker* worker) {
    MutexLock lock(&mu_);
    workers_.erase(std::remove(workers_.begin(), workers_.end(), worker), workers_.end());
  }

 private:
  void ProcessEnds(int status) {
    std::vector<Worker*> workers;
    {
      MutexLock lock(&mu_);
      workers.swap(workers_);
    }
    for (Worker* worker : workers) {
      const absl::Status ignored =
          status == 0 ? worker->Shutdown(kAtExit) : worker->FailByExit(status, kAtExit);
    }
  }

  // Guarded by mu_.
  Mutex mu_;
  bool registered_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Worker*> workers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

void ForgetHeldGoodbye(Worker* worker) { HeldGoodbyes::Instance().Remove(worker); }

}  // namespace coordd

using coordd::AtBorder;

extern "C" {

coordd_status_t coordd_worker_fail(coordd_worker_t* worker, const char* what,
                                   double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    return worker->worker->Fail(what == nullptr ? "" : what, timeout);
  });
}

coordd_status_t coordd_worker_leave_at_exit(coordd_worker_t* worker, double hold_seconds,
                                            double timeout_seconds) {
  return AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration hold, coordd::TimeoutFromSeconds(hold_seconds));
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    COORDD_RETURN_IF_ERROR(worker->worker->FinishWork(hold, timeout));
    coordd::HeldGoodbyes::Instance().Add(worker->worker.get());
    return absl::OkStatus();
  });
}

}  // extern "C"
