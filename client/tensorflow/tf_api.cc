#include "client/tensorflow/tf_api.h"

#include <dlfcn.h>

#include <string>

namespace coordd::tensorflow {
namespace {

// A virtual function of TensorFlow's own receiving op. Its mangled name holds the type of the
// callback that every asynchronous kernel is given: std::function<void()>, which DoneCallback
// moves. With another type this symbol would have another name.
constexpr const char* kCallbacksType[] = {
    "_ZN10tensorflow6RecvOp12ComputeAsyncEPNS_15OpKernelContextESt8functionIFvvEE",
    "_ZN10tensorflow6Device12ComputeAsyncEPNS_13AsyncOpKernelEPNS_"
    "15OpKernelContextESt8functionIFvvEE",
};

TfApi& MutableApi() {
  static TfApi api;
  return api;
}

// By soname, among what is loaded: Python's TensorFlow also offers its symbols to the process.
void* LoadedTensorFlow() {
  for (const char* name : {"libtensorflow_framework.so.2", "_pywrap_tensorflow_internal.so"}) {
    if (void* handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD); handle != nullptr) return handle;
  }
  return nullptr;
}

void* Find(void* library, const std::string& name) {
  void* symbol = library == nullptr ? nullptr : dlsym(library, name.c_str());
  return symbol != nullptr ? symbol : dlsym(RTLD_DEFAULT, name.c_str());
}

}  // namespace

const TfApi& Tf() { return MutableApi(); }

std::string FindTensorFlow() {
  void* library = LoadedTensorFlow();
  TfApi& api = MutableApi();
#define COORDD_TF_FIND(name, type)                                             \
  api.name = reinterpret_cast<decltype(api.name)>(Find(library, "TF_" #name)); \
  if (api.name == nullptr) return "this TensorFlow has no TF_" #name ", expected 2.13 or later";
  COORDD_TF_FUNCTIONS(COORDD_TF_FIND)
#undef COORDD_TF_FIND
  for (const char* symbol : kCallbacksType) {
    if (Find(library, symbol) != nullptr) return "";
  }
  return "this TensorFlow gives its asynchronous kernels another callback than "
         "std::function<void()>, which is all that this coordd knows";
}

OwnedStatus::OwnedStatus() : status_(Tf().NewStatus()) {}
OwnedStatus::~OwnedStatus() { Tf().DeleteStatus(status_); }
bool OwnedStatus::ok() const { return Tf().GetCode(status_) == kTfOk; }
std::string OwnedStatus::message() const { return Tf().Message(status_); }

}  // namespace coordd::tensorflow
