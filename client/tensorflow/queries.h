// Ops that tell who this rank is when they run, so that a graph that was traced once is right in
// every generation.
#pragma once

#include "client/tensorflow/tf_api.h"

namespace coordd::tensorflow {

enum class Query { kRank, kSize, kLocalRank, kLocalSize, kIncluded };

// Writes the answer, one int32. `process_set`: of kSize and kIncluded, 1: yes. FAILED_PRECONDITION:
// not initialised; INVALID_ARGUMENT: no such set.
void AnswerQuery(Query query, int process_set, TfContext* context);

}  // namespace coordd::tensorflow
