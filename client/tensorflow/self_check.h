// Whether this TensorFlow treats the callback of an asynchronous kernel as this library expects:
// asked once, with an op that does nothing, before any collective depends on it.
#pragma once

#include "client/tensorflow/tf_api.h"

namespace coordd::tensorflow {

// The op's kernel: keeps the callback and returns. Without a place that the callback could be run
// from (its functions are in no library that is loaded), it fails at once.
void StartSelfCheck(TfContext* context, TfDone* done);

// On another thread: waits, `timeout_seconds` at most, until the kernel has been called and has
// returned, then runs its callback. False: it has not been called.
bool FinishSelfCheck(double timeout_seconds);

}  // namespace coordd::tensorflow
