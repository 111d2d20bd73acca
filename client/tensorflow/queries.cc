#include "client/tensorflow/queries.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "client/tensorflow/loaded_coordd.h"

namespace coordd::tensorflow {
namespace {

void Fail(TfContext* context, int code, const char* message) {
  const OwnedStatus status;
  Tf().SetStatus(status.get(), code, message);
  Tf().OpKernelContext_Failure(context, status.get());
}

// The ranks of a set; false: there is no such set.
bool RanksOf(coordd_worker_t* worker, int process_set, std::vector<int32_t>* ranks) {
  size_t count = 0;
  Coordd().coordd_process_set_ranks(worker, process_set, nullptr, 0, &count);
  ranks->resize(count);
  return count > 0 && Coordd().coordd_process_set_ranks(worker, process_set, ranks->data(), count,
                                                        &count) == COORDD_OK;
}

}  // namespace

void AnswerQuery(Query query, int process_set, TfContext* context) {
  coordd_worker_t* worker = CurrentWorker();
  if (worker == nullptr) return Fail(context, kTfFailedPrecondition, kNotInitialised);
  const OwnedStatus status;
  TfTensor* output =
      Tf().AllocateOutput(context, 0, kTfInt32, nullptr, 0, sizeof(int32_t), status.get());
  if (!status.ok()) return Tf().OpKernelContext_Failure(context, status.get());
  auto* answer = static_cast<int32_t*>(Tf().TensorData(output));
  std::vector<int32_t> ranks;
  if (query == Query::kRank) {
    *answer = Coordd().coordd_rank(worker);
  } else if (query == Query::kLocalRank) {
    *answer = Coordd().coordd_local_rank(worker);
  } else if (query == Query::kLocalSize) {
    *answer = Coordd().coordd_local_size(worker);
  } else if (query == Query::kSize && process_set == 0) {
    *answer = Coordd().coordd_size(worker);
  } else if (!RanksOf(worker, process_set, &ranks)) {
    Fail(context, kTfInvalidArgument, Coordd().coordd_last_error());
  } else if (query == Query::kSize) {
    *answer = static_cast<int32_t>(ranks.size());
  } else {
    const int32_t own = Coordd().coordd_rank(worker);
    *answer = std::find(ranks.begin(), ranks.end(), own) != ranks.end() ? 1 : 0;
  }
  Tf().DeleteTensor(output);
}

}  // namespace coordd::tensorflow
