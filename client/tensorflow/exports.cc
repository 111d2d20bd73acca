// What coordd.tensorflow calls of this library. TensorFlow registers the ops when it loads it.
#include <string>

#include "client/tensorflow/loaded_coordd.h"
#include "client/tensorflow/registration.h"
#include "client/tensorflow/self_check.h"
#include "client/tensorflow/tf_api.h"
#include "client/tensorflow/xla_call.h"
#include "client/tensorflow/xla_ffi.h"

namespace {

// In a variable's initialiser: a function with __attribute__((constructor)) may run before the
// variables of its own library are made.
const std::string& LoadFailure() {
  static const std::string* const failure = [] {
    std::string found = coordd::tensorflow::FindTensorFlow();
    if (found.empty()) found = coordd::tensorflow::RegisterOps();
    return new std::string(found);
  }();
  return *failure;
}

[[maybe_unused]] const std::string& registered_as_loaded = LoadFailure();

}  // namespace

extern "C" {

#define COORDD_TF_EXPORT __attribute__((visibility("default")))

// Empty: the ops are registered; else why they are not.
COORDD_TF_EXPORT const char* coordd_tensorflow_failure() { return LoadFailure().c_str(); }

// `handle`: dlopen's, of the libcoordd.so that the process uses. Empty: done; else one sentence.
COORDD_TF_EXPORT const char* coordd_tensorflow_use(void* handle) {
  static std::string failure;
  failure = coordd::tensorflow::UseCoordd(handle);
  return failure.c_str();
}

// The worker of init(); NULL after its end.
COORDD_TF_EXPORT void coordd_tensorflow_set_worker(coordd_worker_t* worker) {
  coordd::tensorflow::SetCurrentWorker(worker);
}

// 1: the op CoorddSelfCheck has been let go on; 0: it has not been called in that time.
COORDD_TF_EXPORT int coordd_tensorflow_finish_self_check(double timeout_seconds) {
  return coordd::tensorflow::FinishSelfCheck(timeout_seconds) ? 1 : 0;
}

// 1: XLA knows the custom call; 0: it cannot.
COORDD_TF_EXPORT int coordd_tensorflow_register_xla() {
  return coordd::tensorflow::RegisterXlaCall() ? 1 : 0;
}

// What jax.ffi.register_ffi_target() is given, for the host and for GPUs: needs no TensorFlow.
COORDD_TF_EXPORT coordd::tensorflow::FfiError* coordd_tensorflow_ffi(
    coordd::tensorflow::FfiCall* call) {
  return coordd::tensorflow::HandleFfiCall(call);
}
COORDD_TF_EXPORT coordd::tensorflow::FfiError* coordd_tensorflow_ffi_gpu(
    coordd::tensorflow::FfiCall* call) {
  return coordd::tensorflow::HandleFfiCallOnGpu(call);
}

}  // extern "C"
