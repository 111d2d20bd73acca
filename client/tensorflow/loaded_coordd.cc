#include "client/tensorflow/loaded_coordd.h"

#include <dlfcn.h>

#include <atomic>
#include <string>

namespace coordd::tensorflow {
namespace {

CoorddCalls& MutableCalls() {
  static CoorddCalls calls;
  return calls;
}

std::atomic<coordd_worker_t*> current_worker{nullptr};

}  // namespace

const CoorddCalls& Coordd() { return MutableCalls(); }

std::string UseCoordd(void* handle) {
  CoorddCalls& calls = MutableCalls();
#define COORDD_TF_FIND(name)                                              \
  calls.name = reinterpret_cast<decltype(&::name)>(dlsym(handle, #name)); \
  if (calls.name == nullptr)                                              \
    return "libcoordd.so has no " #name ": it is older than libcoordd_tensorflow.so";
  COORDD_TF_CALLS(COORDD_TF_FIND)
#undef COORDD_TF_FIND
  return "";
}

coordd_worker_t* CurrentWorker() { return current_worker.load(); }
void SetCurrentWorker(coordd_worker_t* worker) { current_worker.store(worker); }

}  // namespace coordd::tensorflow
