// The callback that TensorFlow gives an asynchronous kernel, so that it outlives the call.
#pragma once

#include <functional>
#include <utility>

#include "client/tensorflow/tf_api.h"

namespace coordd::tensorflow {

// TensorFlow hands a kernel of the C interface the ADDRESS of its callback, a std::function<void()>
// that is an argument of the caller's: it is gone when the kernel returns. So it is moved here.
// FindTensorFlow() refuses a TensorFlow whose callbacks have another type.
class DoneCallback {
 public:
  explicit DoneCallback(TfDone* done)
      : done_(std::move(*reinterpret_cast<std::function<void()>*>(done))) {}

  // Once. What follows in the graph may run within it, and the kernel's context is gone after it.
  void Run() { Tf().RunAsyncOpKernelDoneCallback(reinterpret_cast<TfDone*>(&done_)); }

 private:
  std::function<void()> done_;
};

}  // namespace coordd::tensorflow
