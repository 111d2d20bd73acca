// The part of TensorFlow's C interface that collectives need, in our own words: no header of
// TensorFlow is included and nothing of it is linked. The functions are looked up in the TensorFlow
// that the process has loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace coordd::tensorflow {

struct TfStatus;
struct TfTensor;
struct TfOpBuilder;
struct TfKernelBuilder;
struct TfConstruction;  // TF_OpKernelConstruction
struct TfContext;       // TF_OpKernelContext
struct TfDone;          // TF_AsyncOpKernelDoneCallback
struct TfShapeContext;  // TF_ShapeInferenceContext
struct TfShape;         // TF_ShapeHandle

// TF_Code: the numbers of gRPC.
enum TfCode {
  kTfOk = 0,
  kTfInvalidArgument = 3,
  kTfFailedPrecondition = 9,
  kTfAborted = 10,
  kTfUnimplemented = 12,
  kTfInternal = 13
};

inline constexpr int kTfInt32 = 3;  // TF_DataType

using TfCreate = void* (*)(TfConstruction*);
using TfCompute = void (*)(void* kernel, TfContext*);
using TfComputeAsync = void (*)(void* kernel, TfContext*, TfDone*);
using TfDelete = void (*)(void* kernel);
using TfShapeFunction = void (*)(TfShapeContext*, TfStatus*);
using TfDeallocator = void (*)(void* data, size_t size_bytes, void* argument);

// Name without "TF_", type. The structure and the lookup are made of this list.
#define COORDD_TF_FUNCTIONS(X)                                                                     \
  X(NewStatus, TfStatus* (*)())                                                                    \
  X(DeleteStatus, void (*)(TfStatus*))                                                             \
  X(SetStatus, void (*)(TfStatus*, int code, const char* message))                                 \
  X(GetCode, int (*)(const TfStatus*))                                                             \
  X(Message, const char* (*)(const TfStatus*))                                                     \
  X(NewOpDefinitionBuilder, TfOpBuilder* (*)(const char* name))                                    \
  X(OpDefinitionBuilderAddAttr, void (*)(TfOpBuilder*, const char*))                               \
  X(OpDefinitionBuilderAddInput, void (*)(TfOpBuilder*, const char*))                              \
  X(OpDefinitionBuilderAddOutput, void (*)(TfOpBuilder*, const char*))                             \
  X(OpDefinitionBuilderSetIsStateful, void (*)(TfOpBuilder*, bool))                                \
  X(OpDefinitionBuilderSetShapeInferenceFunction, void (*)(TfOpBuilder*, TfShapeFunction))         \
  X(RegisterOpDefinition, void (*)(TfOpBuilder*, TfStatus*))                                       \
  X(NewShapeHandle, TfShape* (*)())                                                                \
  X(DeleteShapeHandle, void (*)(TfShape*))                                                         \
  X(ShapeInferenceContextNumInputs, int64_t (*)(TfShapeContext*))                                  \
  X(ShapeInferenceContextGetInput, void (*)(TfShapeContext*, int, TfShape*, TfStatus*))            \
  X(ShapeInferenceContextSetOutput, void (*)(TfShapeContext*, int, TfShape*, TfStatus*))           \
  X(ShapeInferenceContextScalar, TfShape* (*)(TfShapeContext*))                                    \
  X(ShapeInferenceContextVectorFromSize, TfShape* (*)(TfShapeContext*, size_t))                    \
  X(ShapeInferenceContextWithRankAtLeast,                                                          \
    void (*)(TfShapeContext*, TfShape*, int64_t rank, TfShape * result, TfStatus*))                \
  X(ShapeInferenceContextSubshape,                                                                 \
    void (*)(TfShapeContext*, TfShape*, int64_t first, int64_t last, TfShape * result, TfStatus*)) \
  X(ShapeInferenceContextConcatenateShapes,                                                        \
    void (*)(TfShapeContext*, TfShape*, TfShape*, TfShape * result, TfStatus*))                    \
  X(NewKernelBuilder,                                                                              \
    TfKernelBuilder* (*)(const char* op, const char* device, TfCreate, TfCompute, TfDelete))       \
  X(NewAsyncKernelBuilder,                                                                         \
    TfKernelBuilder* (*)(const char* op, const char* device, TfCreate, TfComputeAsync, TfDelete))  \
  X(KernelBuilder_HostMemory, void (*)(TfKernelBuilder*, const char* argument))                    \
  X(RegisterKernelBuilder, void (*)(const char* name, TfKernelBuilder*, TfStatus*))                \
  X(RunAsyncOpKernelDoneCallback, void (*)(TfDone*))                                               \
  X(OpKernelConstruction_Failure, void (*)(TfConstruction*, TfStatus*))                            \
  X(OpKernelConstruction_GetAttrSize,                                                              \
    void (*)(TfConstruction*, const char*, int32_t* list, int32_t* total, TfStatus*))              \
  X(OpKernelConstruction_GetAttrString,                                                            \
    void (*)(TfConstruction*, const char*, char*, size_t, TfStatus*))                              \
  X(OpKernelConstruction_GetAttrInt32,                                                             \
    void (*)(TfConstruction*, const char*, int32_t*, TfStatus*))                                   \
  X(OpKernelConstruction_GetAttrFloat, void (*)(TfConstruction*, const char*, float*, TfStatus*))  \
  X(OpKernelContext_Failure, void (*)(TfContext*, TfStatus*))                                      \
  X(NumInputs, int (*)(TfContext*))                                                                \
  X(GetInput, void (*)(TfContext*, int, TfTensor**, TfStatus*))                                    \
  X(ForwardInputOrAllocateOutput,                                                                  \
    TfTensor* (*)(TfContext*, const int* candidates, int count, int output, const int64_t* dims,   \
                  int num_dims, int* forwarded, TfStatus*))                                        \
  X(AllocateOutput, TfTensor* (*)(TfContext*, int, int dtype, const int64_t* dims, int num_dims,   \
                                  size_t size_bytes, TfStatus*))                                   \
  X(SetOutput, void (*)(TfContext*, int, const TfTensor*, TfStatus*))                              \
  X(NewTensor, TfTensor* (*)(int dtype, const int64_t* dims, int num_dims, void* data,             \
                             size_t size_bytes, TfDeallocator, void* argument))                    \
  X(DeleteTensor, void (*)(TfTensor*))                                                             \
  X(TensorType, int (*)(const TfTensor*))                                                          \
  X(NumDims, int (*)(const TfTensor*))                                                             \
  X(Dim, int64_t (*)(const TfTensor*, int))                                                        \
  X(TensorData, void* (*)(const TfTensor*))

struct TfApi {
#define COORDD_TF_MEMBER(name, type) decltype(static_cast<type>(nullptr)) name = nullptr;
  COORDD_TF_FUNCTIONS(COORDD_TF_MEMBER)
#undef COORDD_TF_MEMBER
};

// The functions of the process's TensorFlow. REQUIRES: FindTensorFlow() has returned "".
const TfApi& Tf();

// Looks them up, once, as this library is loaded. Empty: all are there; else one sentence.
std::string FindTensorFlow();

// A TF_Status that is deleted with this object.
class OwnedStatus {
 public:
  OwnedStatus();
  ~OwnedStatus();
  OwnedStatus(const OwnedStatus&) = delete;
  OwnedStatus& operator=(const OwnedStatus&) = delete;

  TfStatus* get() const { return status_; }
  bool ok() const;
  std::string message() const;

 private:
  TfStatus* const status_;
};

}  // namespace coordd::tensorflow
