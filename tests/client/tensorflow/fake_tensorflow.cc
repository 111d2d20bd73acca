#include "tests/client/tensorflow/fake_tensorflow.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <new>
#include <utility>

namespace tensorflow {
class OpKernelContext;
// By the name of this function libcoordd_tensorflow.so knows the type of a callback.
class FAKE_TENSORFLOW_EXPORT RecvOp {
 public:
  void ComputeAsync(OpKernelContext* context, std::function<void()> done);
};
void RecvOp::ComputeAsync(OpKernelContext*, std::function<void()> done) { done(); }
}  // namespace tensorflow

namespace fake_tensorflow {

constexpr std::chrono::seconds kPatience{60};

std::atomic<int> live{0};

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fake_tensorflow: %s\n", what);
  std::abort();
}

class Buffer {
 public:
  explicit Buffer(size_t size_bytes) : own_(size_bytes + 1), data_(own_.data()) {}
  Buffer(void* data, size_t size_bytes, void (*free)(void*, size_t, void*), void* argument)
      : data_(data), size_bytes_(size_bytes), free_(free), argument_(argument) {}
  ~Buffer() {
    if (free_ != nullptr) free_(data_, size_bytes_, argument_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() { return data_; }

 private:
  std::vector<char> own_;
  void* data_;
  size_t size_bytes_ = 0;
  void (*free_)(void*, size_t, void*) = nullptr;
  void* argument_ = nullptr;
};

size_t SizeOf(int dtype) {
  return dtype == kComplex64 || dtype == kInt64 ? 8 : dtype == kString ? 24 : 4;
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (int64_t one : shape) count *= one;
  return count;
}

}  // namespace fake_tensorflow

using namespace fake_tensorflow;

struct TF_Status {
  int code = 0;
  std::string message;
};
struct TF_Tensor {
  Tensor value;
};
struct TF_ShapeHandle {
  std::vector<int64_t> shape;
};
struct TF_ShapeInferenceContext {
  std::vector<std::vector<int64_t>> inputs, outputs;
};
struct TF_OpDefinitionBuilder {
  std::string name;
  std::vector<std::string> attributes, inputs, outputs;
  bool stateful = false;
  void (*shapes)(TF_ShapeInferenceContext*, TF_Status*) = nullptr;
};
struct TF_OpKernelConstruction {
  const Attributes* attributes;
  TF_Status failure;
};
struct TF_OpKernelContext {
  std::vector<Tensor> inputs;
  std::map<int, Tensor> outputs;
  TF_Status failure;
};
struct TF_KernelBuilder {
  std::string op, device;
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*);
  void (*compute_async)(void*, TF_OpKernelContext*, void*);
  void (*destroy)(void*);
};

namespace {

std::map<std::string, TF_OpDefinitionBuilder>& Ops() {
  static std::map<std::string, TF_OpDefinitionBuilder> ops;
  return ops;
}
std::map<std::string, TF_KernelBuilder>& Kernels() {  // by "name on CPU"
  static std::map<std::string, TF_KernelBuilder> kernels;
  return kernels;
}

template <typename Object>
Object* Made(Object object) {
  ++live;
  return new Object(std::move(object));
}
template <typename Object>
void Deleted(Object* object) {
  Require(object != nullptr, "a null object was deleted");
  --live;
  delete object;
}
void Say(TF_Status* status, int code, const char* message) { *status = {code, message}; }

const auto* Find(const TF_OpKernelConstruction* construction, const char* name) {
  const auto found = construction->attributes->find(name);
  Require(found != construction->attributes->end(),
          "an attribute was asked for that the node has not");
  return &found->second;
}

}  // namespace

#define EXPORT extern "C" FAKE_TENSORFLOW_EXPORT

EXPORT TF_Status* TF_NewStatus() { return Made(TF_Status{}); }
EXPORT void TF_DeleteStatus(TF_Status* status) { Deleted(status); }
EXPORT void TF_SetStatus(TF_Status* status, int code, const char* text) { Say(status, code, text); }
EXPORT int TF_GetCode(const TF_Status* status) { return status->code; }
EXPORT const char* TF_Message(const TF_Status* status) { return status->message.c_str(); }

EXPORT TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* name) {
  return Made(TF_OpDefinitionBuilder{name, {}, {}, {}, false, nullptr});
}
EXPORT void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder* op, const char* one) {
  op->attributes.emplace_back(one);
}
EXPORT void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder* op, const char* one) {
  op->inputs.emplace_back(one);
}
EXPORT void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder* op, const char* one) {
  op->outputs.emplace_back(one);
}
EXPORT void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder* op, bool stateful) {
  op->stateful = stateful;
}
EXPORT void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder* op, void (*shapes)(TF_ShapeInferenceContext*, TF_Status*)) {
  op->shapes = shapes;
}
EXPORT void TF_RegisterOpDefinition(TF_OpDefinitionBuilder* op, TF_Status* status) {
  Require(op->stateful, "an op without a declared effect");
  Require(op->shapes != nullptr, "an op without a shape function");
  Require(Ops().emplace(op->name, *op).second, "an op was registered twice");
  Say(status, 0, "");
  Deleted(op);
}

EXPORT TF_ShapeHandle* TF_NewShapeHandle() { return Made(TF_ShapeHandle{}); }
EXPORT void TF_DeleteShapeHandle(TF_ShapeHandle* shape) { Deleted(shape); }
EXPORT int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext* context) {
  return static_cast<int64_t>(context->inputs.size());
}
EXPORT void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext* context, int index,
                                             TF_ShapeHandle* shape, TF_Status*) {
  shape->shape = context->inputs.at(static_cast<size_t>(index));
}
EXPORT void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext* context, int index,
                                              TF_ShapeHandle* shape, TF_Status*) {
  Require(static_cast<size_t>(index) == context->outputs.size(), "outputs' shapes out of order");
  context->outputs.push_back(shape->shape);
}
EXPORT TF_ShapeHandle* TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext*) {
  return Made(TF_ShapeHandle{});
}
EXPORT TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext*,
                                                              size_t size) {
  return Made(TF_ShapeHandle{{static_cast<int64_t>(size)}});
}
EXPORT void TF_ShapeInferenceContextWithRankAtLeast(TF_ShapeInferenceContext*,
                                                    TF_ShapeHandle* shape, int64_t rank,
                                                    TF_ShapeHandle* result, TF_Status* status) {
  if (static_cast<int64_t>(shape->shape.size()) < rank) return Say(status, 3, "too few dimensions");
  result->shape = shape->shape;
}
EXPORT void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext*, TF_ShapeHandle* shape,
                                             int64_t first, int64_t last, TF_ShapeHandle* result,
                                             TF_Status*) {
  const auto end = static_cast<int64_t>(shape->shape.size());
  Require(first <= end && first <= last, "a part of a shape that there is not");
  result->shape.assign(shape->shape.begin() + first, shape->shape.begin() + std::min(last, end));
}
EXPORT void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext*,
                                                      TF_ShapeHandle* one, TF_ShapeHandle* other,
                                                      TF_ShapeHandle* result, TF_Status*) {
  result->shape = one->shape;
  result->shape.insert(result->shape.end(), other->shape.begin(), other->shape.end());
}

EXPORT TF_KernelBuilder* TF_NewKernelBuilder(const char* op, const char* device,
                                             void* (*create)(TF_OpKernelConstruction*),
                                             void (*compute)(void*, TF_OpKernelContext*),
                                             void (*destroy)(void*)) {
  return Made(TF_KernelBuilder{op, device, create, compute, nullptr, destroy});
}
EXPORT TF_KernelBuilder* TF_NewAsyncKernelBuilder(
    const char* op, const char* device, void* (*create)(TF_OpKernelConstruction*),
    void (*compute)(void*, TF_OpKernelContext*, void*), void (*destroy)(void*)) {
  return Made(TF_KernelBuilder{op, device, create, nullptr, compute, destroy});
}
EXPORT void TF_KernelBuilder_HostMemory(TF_KernelBuilder* kernel, const char* argument) {
  const TF_OpDefinitionBuilder& op = Ops().at(kernel->op);
  const std::string start = std::string(argument) + ":";
  bool known = false;
  for (const auto& list : {op.inputs, op.outputs}) {
    for (const std::string& one : list) known = known || one.rfind(start, 0) == 0;
  }
  Require(known, "host memory for an argument that the op has not");
}
EXPORT void TF_RegisterKernelBuilder(const char* name, TF_KernelBuilder* kernel,
                                     TF_Status* status) {
  Require(Ops().count(name) == 1, "a kernel of an op that is not registered");
  Require(Kernels().emplace(kernel->op + " on " + kernel->device, *kernel).second,
          "a kernel twice");
  Say(status, 0, "");
  Deleted(kernel);
}
EXPORT void TF_RunAsyncOpKernelDoneCallback(void* done) {
  (*static_cast<std::function<void()>*>(done))();
}

EXPORT void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* construction,
                                            TF_Status* status) {
  construction->failure = *status;
}
EXPORT void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction* construction,
                                                const char* name, int32_t* list, int32_t* total,
                                                TF_Status*) {
  *list = -1;
  *total = static_cast<int32_t>(std::get<std::string>(*Find(construction, name)).size());
}
EXPORT void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction* construction,
                                                  const char* name, char* text, size_t size,
                                                  TF_Status*) {
  std::memcpy(text, std::get<std::string>(*Find(construction, name)).data(), size);
}
EXPORT void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction* construction,
                                                 const char* name, int32_t* value, TF_Status*) {
  *value = std::get<int32_t>(*Find(construction, name));
}
EXPORT void TF_OpKernelConstruction_GetAttrFloat(TF_OpKernelConstruction* construction,
                                                 const char* name, float* value, TF_Status*) {
  *value = std::get<float>(*Find(construction, name));
}

EXPORT void TF_OpKernelContext_Failure(TF_OpKernelContext* context, TF_Status* status) {
  Require(status->code != 0, "a failure without a code");
  context->failure = *status;
}
EXPORT int TF_NumInputs(TF_OpKernelContext* context) {
  return static_cast<int>(context->inputs.size());
}
EXPORT void TF_GetInput(TF_OpKernelContext* context, int index, TF_Tensor** tensor,
                        TF_Status* status) {
  if (static_cast<size_t>(index) >= context->inputs.size()) return Say(status, 11, "no such input");
  *tensor = Made(TF_Tensor{context->inputs[static_cast<size_t>(index)]});
}
EXPORT TF_Tensor* TF_AllocateOutput(TF_OpKernelContext* context, int index, int dtype,
                                    const int64_t* dims, int num_dims, size_t size_bytes,
                                    TF_Status*) {
  const std::vector<int64_t> shape(dims, dims + num_dims);
  Require(size_bytes == static_cast<size_t>(Elements(shape)) * SizeOf(dtype), "a size and a shape");
  Tensor tensor{dtype, shape, std::make_shared<Buffer>(size_bytes)};
  Require(context->outputs.emplace(index, tensor).second, "an output was made twice");
  return Made(TF_Tensor{tensor});
}
// As TensorFlow: the buffer is given away when nobody but the context has it.
EXPORT TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext* context,
                                                  const int* candidates, int count, int index,
                                                  const int64_t* dims, int num_dims, int* forwarded,
                                                  TF_Status* status) {
  Require(count == 1, "one candidate");
  Tensor& input = context->inputs.at(static_cast<size_t>(*candidates));
  if (input.buffer.use_count() > 1) {
    *forwarded = -1;
    const size_t size_bytes = static_cast<size_t>(Elements(input.shape)) * SizeOf(input.dtype);
    return TF_AllocateOutput(context, index, input.dtype, dims, num_dims, size_bytes, status);
  }
  *forwarded = *candidates;
  Tensor tensor{input.dtype, {dims, dims + num_dims}, std::move(input.buffer)};
  Require(context->outputs.emplace(index, tensor).second, "an output was made twice");
  return Made(TF_Tensor{tensor});
}
EXPORT void TF_SetOutput(TF_OpKernelContext* context, int index, const TF_Tensor* tensor,
                         TF_Status*) {
  Require(context->outputs.emplace(index, tensor->value).second, "an output was made twice");
}
EXPORT TF_Tensor* TF_NewTensor(int dtype, const int64_t* dims, int num_dims, void* data,
                               size_t size_bytes, void (*free)(void*, size_t, void*),
                               void* argument) {
  Require(reinterpret_cast<uintptr_t>(data) % 64 == 0, "memory that TensorFlow would have to copy");
  const std::vector<int64_t> shape(dims, dims + num_dims);
  Require(size_bytes == static_cast<size_t>(Elements(shape)) * SizeOf(dtype), "a size and a shape");
  return Made(
      TF_Tensor{{dtype, shape, std::make_shared<Buffer>(data, size_bytes, free, argument)}});
}
EXPORT void TF_DeleteTensor(TF_Tensor* tensor) { Deleted(tensor); }
EXPORT int TF_TensorType(const TF_Tensor* tensor) { return tensor->value.dtype; }
EXPORT int TF_NumDims(const TF_Tensor* tensor) {
  return static_cast<int>(tensor->value.shape.size());
}
EXPORT int64_t TF_Dim(const TF_Tensor* tensor, int index) {
  return tensor->value.shape.at(static_cast<size_t>(index));
}
EXPORT void* TF_TensorData(const TF_Tensor* tensor) { return tensor->value.buffer->data(); }

namespace fake_tensorflow {

Tensor NewTensor(int dtype, std::vector<int64_t> shape, const void* data) {
  const size_t size_bytes = static_cast<size_t>(Elements(shape)) * SizeOf(dtype);
  Tensor tensor{dtype, std::move(shape), std::make_shared<Buffer>(size_bytes)};
  if (data != nullptr) std::memcpy(tensor.buffer->data(), data, size_bytes);
  return tensor;
}

const void* DataOf(const Tensor& tensor) { return tensor.buffer->data(); }

std::vector<std::string> RegisteredOps() {
  std::vector<std::string> names;
  for (const auto& [name, op] : Ops()) names.push_back(name);
  return names;
}

std::vector<std::string> RegisteredKernels() {
  std::vector<std::string> names;
  for (const auto& [name, kernel] : Kernels()) names.push_back(name);
  return names;
}

Outcome RunNode(const std::string& op, const Attributes& attributes, std::vector<Tensor> inputs) {
  const TF_KernelBuilder& builder = Kernels().at(op + " on CPU");
  TF_OpKernelConstruction construction{&attributes, {}};
  void* kernel = builder.create(&construction);
  Require(construction.failure.code == 0, "the kernel was not made");
  TF_OpKernelContext context{std::move(inputs), {}, {}};
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  if (builder.compute != nullptr) {
    builder.compute(kernel, &context);
  } else {
    alignas(std::function<void()>) char memory[sizeof(std::function<void()>)];
    auto* done = new (memory) std::function<void()>([&] {
      const std::lock_guard<std::mutex> lock(mutex);
      Require(!is_done, "the callback was called twice");
      is_done = true;
      changed.notify_all();
    });
    builder.compute_async(kernel, &context, done);
    done->~function();
    std::memset(memory, 0xee, sizeof(memory));
    std::unique_lock<std::mutex> lock(mutex);
    Require(changed.wait_for(lock, kPatience, [&] { return is_done; }),
            "the callback was not called");
  }
  builder.destroy(kernel);
  Outcome outcome{context.failure.code, context.failure.message, {}};
  for (auto& [index, tensor] : context.outputs) outcome.outputs.push_back(tensor);
  return outcome;
}

Shapes InferShapes(const std::string& op, const std::vector<std::vector<int64_t>>& inputs) {
  TF_ShapeInferenceContext context{inputs, {}};
  TF_Status status;
  Ops().at(op).shapes(&context, &status);
  return {status.code, context.outputs};
}

int LiveObjects() { return live; }

}  // namespace fake_tensorflow
