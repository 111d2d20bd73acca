// Collectives in CUDA graphs.
#include "client/c_api/c_api_internal.h"
#include "common/base/status_macros.h"

extern "C" {

coordd_status_t coordd_graphs_prepare(coordd_worker_t* worker, int32_t process_set,
                                      int32_t device_index, double timeout_seconds) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    return worker->worker->PrepareGraphs(coordd::ProcessSetId{process_set}, device_index, timeout);
  });
}

coordd_status_t coordd_graphs_check(coordd_worker_t* worker, int32_t process_set,
                                    double timeout_seconds) {
  return coordd::AtBorder([&]() -> absl::Status {
    if (worker == nullptr) return coordd::NullArgument("worker");
    COORDD_ASSIGN_OR_RETURN(const absl::Duration timeout,
                            coordd::TimeoutFromSeconds(timeout_seconds));
    return worker->worker->CheckGraphs(coordd::ProcessSetId{process_set}, timeout);
  });
}

}  // extern "C"
