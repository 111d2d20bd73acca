// One run of a collective's kernel, from TensorFlow's call to TensorFlow's callback.
#pragma once

#include "client/tensorflow/kernel.h"
#include "client/tensorflow/tf_api.h"

namespace coordd::tensorflow {

// Submits and returns: no thread of TensorFlow's waits for other ranks, but for a moment
// (short_wait.h), so that ranks whose graphs run their nodes in different orders do not wait for
// each other. Calls `done` once, on a thread of libcoordd.so or on this one. Failures are
// TensorFlow's statuses: ranks that disagree are FAILED_PRECONDITION, and a lost rank is ABORTED.
void StartCollective(const Kernel& kernel, TfContext* context, TfDone* done);

}  // namespace coordd::tensorflow
