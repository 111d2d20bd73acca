#include "client/tensorflow/xla_ffi.h"

#include <atomic>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/c_api/coordd.h"
#include "client/tensorflow/elements.h"
#include "client/tensorflow/kernel.h"
#include "client/tensorflow/loaded_coordd.h"
#include "client/tensorflow/short_wait.h"

namespace coordd::tensorflow {
namespace {

constexpr int kMetadataExtension = 1;
constexpr int kExecuteStage = 3;
constexpr int kFuturesSinceMinor = 2;

// XLA's PrimitiveType as TensorFlow's number of the same elements; 0: there is none.
int TfDtypeOf(int dtype) {
  constexpr int kTfDtypes[] = {0, 10, 6, 5, 3, 9,  4, 17, 22, 23, 19,
                               1, 2,  0, 0, 8, 14, 0, 18, 24, 25};
  const bool is_known = dtype >= 0 && static_cast<size_t>(dtype) < std::size(kTfDtypes);
  return is_known ? kTfDtypes[dtype] : 0;
}

struct FfiRequest {
  int32_t kind = 0;
  std::string name;
  int32_t reduce_op = COORDD_SUM;
  int32_t root_rank = 0;
  coordd_call_options_t options = COORDD_CALL_OPTIONS_INIT;
};

FfiRequest RequestOf(const FfiAttributes& attributes) {
  FfiRequest request;
  for (int64_t i = 0; i < attributes.size; ++i) {
    const std::string name(attributes.names[i]->data, attributes.names[i]->size);
    void* value = attributes.values[i];
    const auto read = [value](auto* into) {
      std::memcpy(into, static_cast<const FfiScalar*>(value)->value, sizeof(*into));
    };
    if (name == "name") {
      const auto* text = static_cast<const FfiBytes*>(value);
      request.name.assign(text->data, text->size);
    } else if (name == "kind") {
      read(&request.kind);
    } else if (name == "reduce_op") {
      read(&request.reduce_op);
    } else if (name == "root_rank") {
      read(&request.root_rank);
    } else if (name == "process_set") {
      read(&request.options.process_set);
    } else if (name == "prescale_factor") {
      read(&request.options.prescale_factor);
    } else if (name == "postscale_factor") {
      read(&request.options.postscale_factor);
    }
  }
  return request;
}

FfiError* MakeError(const FfiApi* api, coordd_status_t status, const std::string& message) {
  const int code = status == COORDD_GENERATION_CHANGED ? COORDD_ABORTED : status;
  FfiErrorCreate arguments{sizeof(FfiErrorCreate), nullptr, message.c_str(), code};
  return api->error_create(&arguments);
}

struct FfiWork {
  coordd_work_t* work = nullptr;
  std::string name;
  std::vector<int64_t> shape;  // of this rank's part, as it travels
  int64_t output_bytes = 0;    // of XLA's buffer
};

// XLA fixes the size of a result when it compiles, by what the ranks were and brought then.
// `found`: the bytes of the result.
FfiError* MakeSizeError(const FfiApi* api, const FfiWork& work, const std::string& found) {
  std::string shape;
  for (const int64_t dimension : work.shape)
    shape += (shape.empty() ? "" : ", ") + std::to_string(dimension);
  return MakeError(
      api, COORDD_INVALID_ARGUMENT,
      "tensor " + work.name + ": the result has " + found +
          " bytes, but the program of XLA is for " + std::to_string(work.output_bytes) +
          ": the parts of all ranks have to have the same shape in JAX, under jit and outside; "
          "this rank's is [" +
          shape +
          "]; after a change of the ranks functions have to be traced anew (jax.clear_caches())");
}

// Of a work that has ended well: nullptr, unless XLA's buffer is larger than the result.
FfiError* CheckSize(const FfiApi* api, const FfiWork& work) {
  coordd_result_t result = COORDD_RESULT_INIT;
  const coordd_status_t status = Coordd().coordd_work_result(work.work, &result);
  if (status != COORDD_OK) return MakeError(api, status, Coordd().coordd_last_error());
  if (result.output_bytes == work.output_bytes) return nullptr;
  return MakeSizeError(api, work, std::to_string(result.output_bytes));
}

// Of a work that has failed. The library says of a result that is larger than its buffer that the
// given output is too small: this program gave none.
FfiError* MakeWorkError(const FfiApi* api, const FfiWork& work, coordd_status_t status,
                        const std::string& message) {
  const bool is_too_small = status == COORDD_INVALID_ARGUMENT &&
                            message.find(" of the given output") != std::string::npos;
  return is_too_small ? MakeSizeError(api, work, "more") : MakeError(api, status, message);
}

// The tensors of one call, as the library takes them.
class FfiTensors {
 public:
  // Empty, else what is wrong.
  std::string Describe(const FfiCall& call, const std::string& name) {
    const auto count = static_cast<size_t>(call.arguments.size);
    tensors_.assign(count, coordd_tensor_t COORDD_TENSOR_INIT);
    names_.resize(count);
    shapes_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const FfiBuffer& input = *call.arguments.buffers[i];
      const FfiBuffer& output = *call.results.buffers[i];
      const auto elements = ElementsOf(TfDtypeOf(input.dtype));
      names_[i] = MemberName(name, i, count);
      if (!elements)
        return names_[i] + ": XLA's elements " + std::to_string(input.dtype) + " cannot travel";
      shapes_[i] = WireShape({input.dims, input.dims + input.rank}, *elements);
      tensors_[i].name = names_[i].c_str();
      tensors_[i].input = input.data;
      tensors_[i].output = output.data;
      tensors_[i].output_capacity_bytes = BytesOf(output, elements->is_complex, elements->dtype);
      tensors_[i].shape = shapes_[i].data();
      tensors_[i].ndim = static_cast<int32_t>(shapes_[i].size());
      tensors_[i].dtype = elements->dtype;
    }
    return "";
  }
  void OnDevice(int32_t device, void* stream) {
    for (coordd_tensor_t& tensor : tensors_) {
      tensor.device_kind = COORDD_CUDA;
      tensor.device_index = device;
      tensor.stream = stream;
    }
  }
  const coordd_tensor_t* data() const { return tensors_.data(); }
  size_t size() const { return tensors_.size(); }
  // Afterwards these are empty. REQUIRES: one work for each of them.
  std::vector<FfiWork> With(const std::vector<coordd_work_t*>& works) && {
    std::vector<FfiWork> result;
    for (size_t i = 0; i < works.size(); ++i) {
      result.push_back({works[i], std::move(names_[i]), std::move(shapes_[i]),
                        tensors_[i].output_capacity_bytes});
    }
    return result;
  }

 private:
  static int64_t BytesOf(const FfiBuffer& buffer, bool is_complex, int32_t dtype) {
    // By coordd_dtype_t, from 1 on.
    constexpr int64_t kSizes[] = {0, 1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 1};
    int64_t size_bytes = kSizes[dtype] * (is_complex ? 2 : 1);
    for (int64_t d = 0; d < buffer.rank; ++d) size_bytes *= buffer.dims[d];
    return size_bytes;
  }

  std::vector<coordd_tensor_t> tensors_;
  std::vector<std::string> names_;
  std::vector<std::vector<int64_t>> shapes_;
};

coordd_status_t SubmitFfi(const FfiRequest& request, const FfiTensors& tensors,
                          coordd_work_t** works) {
  coordd_worker_t* worker = CurrentWorker();
  switch (static_cast<Kind>(request.kind)) {
    case Kind::kAllreduce:
      return Coordd().coordd_grouped_allreduce_async(worker, request.name.c_str(), tensors.data(),
                                                     tensors.size(), request.reduce_op,
                                                     &request.options, works);
    case Kind::kAllgather:
      return Coordd().coordd_allgather_async(worker, tensors.data(), &request.options, works);
    case Kind::kBroadcast:
      return Coordd().coordd_broadcast_async(worker, tensors.data(), request.root_rank,
                                             &request.options, works);
    case Kind::kReducescatter:
      return Coordd().coordd_reducescatter_async(worker, tensors.data(), request.reduce_op,
                                                 &request.options, works);
    default:
      return Coordd().coordd_alltoall_async(worker, tensors.data(), nullptr, 0, &request.options,
                                            works);
  }
}

// A reduction of one tensor goes without a group, and its work may be complete: nullptr.
coordd_status_t SubmitFfiOnHost(const FfiRequest& request, const FfiTensors& tensors,
                                const UnderWay& under_way, coordd_work_t** works) {
  const bool is_one_allreduce =
      static_cast<Kind>(request.kind) == Kind::kAllreduce && tensors.size() == 1;
  if (!is_one_allreduce) return SubmitFfi(request, tensors, works);
  return SubmitAllreduce(under_way, *tensors.data(), request.reduce_op, request.options, works);
}

// Deletes itself with the last of its tensors.
class FfiExecution {
 public:
  FfiExecution(const FfiApi* api, FfiFuture* future, std::unique_ptr<UnderWay> under_way,
               std::vector<FfiWork> works)
      : api_(api),
        future_(future),
        under_way_(std::move(under_way)),
        works_(std::move(works)),
        pending_(works_.size()) {}

  void Start() {
    std::vector<coordd_work_t*> works;  // the last one's completion may delete this
    for (const FfiWork& work : works_) works.push_back(work.work);
    for (coordd_work_t* work : works) Coordd().coordd_work_on_complete(work, &OnComplete, this);
  }

 private:
  static void OnComplete(void* user, coordd_status_t status, const char* message) {
    auto* execution = static_cast<FfiExecution*>(user);
    if (status != COORDD_OK && !execution->failed_.exchange(true)) {
      // Only what goes alone has a size that others' parts decide.
      execution->error_ =
          MakeWorkError(execution->api_, execution->works_.front(), status, message);
    }
    if (execution->pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) execution->Finish();
  }
  void Finish() {
    for (const FfiWork& work : works_) {
      if (error_ == nullptr) error_ = CheckSize(api_, work);
      Coordd().coordd_work_release(work.work);
    }
    if (error_ != nullptr) {
      FfiFutureSetError arguments{sizeof(FfiFutureSetError), nullptr, future_, error_};
      api_->future_set_error(&arguments);
    } else {
      FfiFutureSetAvailable arguments{sizeof(FfiFutureSetAvailable), nullptr, future_};
      api_->future_set_available(&arguments);
    }
    delete this;
  }

  const FfiApi* const api_;
  FfiFuture* const future_;
  const std::unique_ptr<UnderWay> under_way_;
  const std::vector<FfiWork> works_;
  std::atomic<size_t> pending_;
  std::atomic<bool> failed_{false};
  FfiError* error_ = nullptr;  // written by the first failure, read by the last completion
};

// Asked at registration for which version of the interface this is: the runtime's own.
bool AnswersMetadata(FfiCall* call) {
  for (FfiExtension* at = call->extension; at != nullptr; at = at->next) {
    if (at->type != kMetadataExtension) continue;
    FfiVersion& version = reinterpret_cast<FfiMetadataExtension*>(at)->metadata->api_version;
    version.major_version = 0;
    version.minor_version = call->api != nullptr ? call->api->version.minor_version : 1;
    return true;
  }
  return false;
}

// Where a call on a GPU is to be executed.
struct FfiDevice {
  int32_t ordinal = -1;
  void* stream = nullptr;
};

// An error of XLA's, or nullptr.
FfiError* FindDevice(const FfiCall& call, FfiDevice& device) {
  const auto* api = reinterpret_cast<const FfiDeviceApi*>(call.api);
  if (api->host.struct_size < sizeof(FfiDeviceApi)) {
    return MakeError(call.api, COORDD_UNIMPLEMENTED,
                     "this jaxlib does not tell which device a call is for, expected FFI API 0.3");
  }
  FfiStreamGet stream{sizeof(FfiStreamGet), nullptr, call.context, nullptr};
  if (FfiError* error = api->host.stream_get(&stream); error != nullptr) return error;
  FfiDeviceOrdinalGet ordinal{sizeof(FfiDeviceOrdinalGet), nullptr, call.context, -1};
  if (FfiError* error = api->device_ordinal_get(&ordinal); error != nullptr) return error;
  device = {ordinal.device_ordinal, stream.stream};
  return nullptr;
}

// What JAX asks for before its first collective on a GPU: the result is the argument's memory.
FfiError* CheckFfiCall(const FfiCall& call, const FfiDevice& device) {
  const bool has_one = call.arguments.size == 1 && call.results.size == 1;
  const bool is_aliased =
      has_one && call.arguments.buffers[0]->data == call.results.buffers[0]->data;
  if (is_aliased && device.stream != nullptr && device.ordinal >= 0) return nullptr;
  return MakeError(call.api, COORDD_UNIMPLEMENTED,
                   "a call has no stream, no device or other buffers than this jaxlib's FFI says");
}

constexpr double kUntilItsDeadline = -1;

// With wait(work). Every work is released, however its wait has ended.
template <typename Wait>
FfiError* WaitForEach(const FfiApi* api, const std::vector<FfiWork>& works, const Wait& wait) {
  FfiError* error = nullptr;
  for (const FfiWork& work : works) {
    const coordd_status_t status = wait(work.work);
    if (error == nullptr) {
      error = status == COORDD_OK ? CheckSize(api, work)
                                  : MakeWorkError(api, work, status, Coordd().coordd_last_error());
    }
    Coordd().coordd_work_release(work.work);
  }
  return error;
}

FfiError* WaitOnStream(const FfiApi* api, const std::vector<FfiWork>& works, void* stream) {
  return WaitForEach(api, works, [stream](coordd_work_t* work) {
    return Coordd().coordd_work_wait_on_stream(work, stream, kUntilItsDeadline);
  });
}

// Where a call cannot return before its result is there.
FfiError* WaitHere(const FfiApi* api, const std::vector<FfiWork>& works) {
  return WaitForEach(api, works, [](coordd_work_t* work) {
    return Coordd().coordd_work_wait(work, kUntilItsDeadline);
  });
}

}  // namespace

FfiError* HandleFfiCallOnGpu(FfiCall* call) {
  if (AnswersMetadata(call) || call->stage != kExecuteStage) return nullptr;
  const FfiApi* api = call->api;
  FfiDevice device;
  if (FfiError* error = FindDevice(*call, device); error != nullptr) return error;
  const FfiRequest request = RequestOf(call->attributes);
  if (request.kind == kFfiSelfCheck) return CheckFfiCall(*call, device);
  if (CurrentWorker() == nullptr)
    return MakeError(api, COORDD_FAILED_PRECONDITION, kNotInitialised);
  FfiTensors tensors;
  const std::string wrong = tensors.Describe(*call, request.name);
  if (!wrong.empty()) return MakeError(api, COORDD_INVALID_ARGUMENT, wrong);
  tensors.OnDevice(device.ordinal, device.stream);
  std::vector<coordd_work_t*> works(tensors.size());
  const coordd_status_t status = SubmitFfi(request, tensors, works.data());
  if (status != COORDD_OK) return MakeError(api, status, Coordd().coordd_last_error());
  return WaitOnStream(api, std::move(tensors).With(works), device.stream);
}

FfiError* HandleFfiCall(FfiCall* call) {
  if (AnswersMetadata(call) || call->stage != kExecuteStage) return nullptr;
  const FfiApi* api = call->api;
  if (CurrentWorker() == nullptr)
    return MakeError(api, COORDD_FAILED_PRECONDITION, kNotInitialised);
  const FfiRequest request = RequestOf(call->attributes);
  FfiTensors tensors;
  const std::string wrong = tensors.Describe(*call, request.name);
  if (!wrong.empty()) return MakeError(api, COORDD_INVALID_ARGUMENT, wrong);
  auto under_way = std::make_unique<UnderWay>();
  std::vector<coordd_work_t*> works(tensors.size());
  const coordd_status_t status = SubmitFfiOnHost(request, tensors, *under_way, works.data());
  if (status != COORDD_OK) return MakeError(api, status, Coordd().coordd_last_error());
  if (works.size() == 1 && works[0] == nullptr) return nullptr;  // it is complete
  if (api->version.minor_version < kFuturesSinceMinor || api->struct_size < sizeof(FfiApi))
    return WaitHere(api, std::move(tensors).With(works));
  FfiFutureCreate create{sizeof(FfiFutureCreate), nullptr, nullptr};
  if (FfiError* error = api->future_create(&create); error != nullptr) return error;
  call->future = create.future;
  (new FfiExecution(api, create.future, std::move(under_way), std::move(tensors).With(works)))
      ->Start();
  return nullptr;
}

}  // namespace coordd::tensorflow
