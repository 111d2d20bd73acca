#include "client/tensorflow/xla_call.h"

#include <dlfcn.h>

#include <cstddef>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "client/c_api/coordd.h"
#include "client/tensorflow/elements.h"
#include "client/tensorflow/loaded_coordd.h"

namespace coordd::tensorflow {
namespace {

constexpr size_t kMostMembers = 65536;  // coordd_grouped_allreduce's

// XLA's status of a custom call, XlaCustomCallStatus_, has this one member; the C function that
// sets it is not among the symbols that TensorFlow's wheels export.
using XlaStatus = std::optional<std::string>;

// Called by XLA's program, API_VERSION_STATUS_RETURNING_UNIFIED: `out` is the only result, or an
// array of the results. Blocks: several of them in one program would run in its order.
void CallFromXla(void* out, const void** in, const char* opaque, size_t size, XlaStatus* status) {
  const std::optional<XlaCall> call = ParseXlaCall(std::string(opaque, size));
  if (!call) {
    status->emplace("a custom call of coordd with arguments of another version");
    return;
  }
  coordd_worker_t* worker = CurrentWorker();
  if (worker == nullptr) {
    status->emplace(kNotInitialised);
    return;
  }
  const size_t count = call->members.size();
  std::vector<coordd_tensor_t> tensors(count, coordd_tensor_t COORDD_TENSOR_INIT);
  std::vector<std::string> names(count);
  for (size_t i = 0; i < count; ++i) {
    names[i] = MemberName(call->name, i, count);
    tensors[i].name = names[i].c_str();
    tensors[i].dtype = call->members[i].dtype;
    tensors[i].shape = &call->members[i].elements;
    tensors[i].ndim = 1;
    tensors[i].input = in[i];
    tensors[i].output = count == 1 ? out : static_cast<void**>(out)[i];
  }
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
  options.prescale_factor = call->prescale_factor;
  options.postscale_factor = call->postscale_factor;
  options.process_set = call->process_set;
  const coordd_status_t result =
      count == 1
          ? Coordd().coordd_allreduce(worker, tensors.data(), call->reduce_op, &options, nullptr)
          : Coordd().coordd_grouped_allreduce(worker, call->name.c_str(), tensors.data(), count,
                                              call->reduce_op, &options, nullptr);
  if (result != COORDD_OK) status->emplace(Coordd().coordd_last_error());
}

}  // namespace

std::optional<XlaCall> ParseXlaCall(const std::string& text) {
  std::istringstream words(text);
  XlaCall call;
  size_t count = 0;
  words >> call.reduce_op >> call.prescale_factor >> call.postscale_factor >> call.process_set >>
      count;
  if (!words || count < 1 || count > kMostMembers) return std::nullopt;
  call.members.resize(count);
  for (XlaCall::Member& member : call.members) words >> member.dtype >> member.elements;
  if (!words || words.get() != ' ') return std::nullopt;
  std::getline(words, call.name, '\0');
  if (call.name.empty()) return std::nullopt;
  return call;
}

// The registry has no C interface. Its two functions have been the same since TensorFlow 2.12.
bool RegisterXlaCall() {
  void* library = dlopen("libtensorflow_cc.so.2", RTLD_LAZY | RTLD_NOLOAD);
  void* handle = library != nullptr ? library : RTLD_DEFAULT;
  using Global = void* (*)();
  using Register = void (*)(void*, const std::string&, void*, const std::string&);
  auto global =
      reinterpret_cast<Global>(dlsym(handle, "_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  auto add = reinterpret_cast<Register>(
      dlsym(handle,
            "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_stringIcSt11char_"
            "traitsIcESaIcEEEPvS8_"));
  if (global == nullptr || add == nullptr) return false;
  add(global(), "coordd_allreduce", reinterpret_cast<void*>(&CallFromXla), "Host");
  return true;
}

}  // namespace coordd::tensorflow
