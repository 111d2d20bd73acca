// What the functions of collectives.h share: from a C structure to a submission, and waiting.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/c_api/c_api_internal.h"

namespace coordd {

// What distinguishes the collectives besides their tensors.
struct Call {
  CollectiveKind kind;
  coordd_op_t op = 0;
  int32_t rank = 0;  // the root, or the peer of a send or receive
  absl::Span<const int64_t> splits = {};
  absl::string_view refused = {};  // TensorSpec::refused
};

// `wait`: at most so long for its end, and then with what this thread can do for it itself.
absl::Status SubmitOne(coordd_worker_t* worker, const coordd_tensor_t* tensor, const Call& call,
                       const coordd_call_options_t* options, coordd_work_t** work,
                       absl::Duration wait = absl::ZeroDuration());

// Submits `count` tensors as one group: they complete or fail together.
absl::Status SubmitMany(coordd_worker_t* worker, const char* name, const coordd_tensor_t* tensors,
                        size_t count, const Call& call, const coordd_call_options_t* options,
                        coordd_work_t** works);

// Waits for `handles`; hands them over in `works` when all succeeded and the caller wants them, and
// releases them otherwise. The first error in their order.
absl::Status WaitForAll(absl::Span<coordd_work_t* const> handles, coordd_work_t** works);

// The bodies of the exported functions: one tensor or a group, without or with waiting.
coordd_status_t Async(coordd_worker_t* worker, const coordd_tensor_t* tensor, const Call& call,
                      const coordd_call_options_t* options, coordd_work_t** work);
coordd_status_t Blocking(coordd_worker_t* worker, const coordd_tensor_t* tensor, const Call& call,
                         const coordd_call_options_t* options, coordd_work_t** work);
// Submits and waits for so long at most; *work receives what is not a success.
coordd_status_t BlockingFor(coordd_worker_t* worker, const coordd_tensor_t* tensor,
                            const Call& call, const coordd_call_options_t* options,
                            double timeout_seconds, coordd_work_t** work);
coordd_status_t GroupedAsync(coordd_worker_t* worker, const char* name,
                             const coordd_tensor_t* tensors, size_t count, const Call& call,
                             const coordd_call_options_t* options, coordd_work_t** works);
coordd_status_t GroupedBlocking(coordd_worker_t* worker, const char* name,
                                const coordd_tensor_t* tensors, size_t count, const Call& call,
                                const coordd_call_options_t* options, coordd_work_t** works);

}  // namespace coordd
