#include "client/tensorflow/short_wait.h"

#include <cstdint>

#include "client/tensorflow/loaded_coordd.h"

namespace coordd::tensorflow {
namespace {

// What takes longer to exchange than to hand over is left to the library's threads.
constexpr int64_t kMostElements = 8192;
// About what handing over and back takes, so that the worst wait costs as much as it might spare.
constexpr double kWaitSeconds = 100e-6;

int64_t CountOf(const coordd_tensor_t& tensor) {
  int64_t elements = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) elements *= tensor.shape[d];
  return elements;
}

}  // namespace

coordd_status_t SubmitAllreduce(const UnderWay& under_way, const coordd_tensor_t& tensor,
                                coordd_op_t op, const coordd_call_options_t& options,
                                coordd_work_t** work) {
  coordd_worker_t* worker = CurrentWorker();
  if (!under_way.is_alone() || CountOf(tensor) > kMostElements) {
    return Coordd().coordd_allreduce_async(worker, &tensor, op, &options, work);
  }
  const coordd_status_t status =
      Coordd().coordd_allreduce_for(worker, &tensor, op, &options, kWaitSeconds, work);
  // It was submitted: its callback tells how it ends, or how it has.
  return *work != nullptr ? COORDD_OK : status;
}

}  // namespace coordd::tensorflow
