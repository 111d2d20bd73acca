// Collectives as handlers of XLA's typed FFI, for JAX. What is used of xla/ffi/api/c_api.h, a C
// interface with a promise of compatibility, is declared here in our own words.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coordd::tensorflow {

struct FfiExtension {
  size_t struct_size;
  int type;
  FfiExtension* next;
};
struct FfiVersion {
  size_t struct_size;
  FfiExtension* extension;
  int major_version;
  int minor_version;
};
struct FfiMetadata {
  size_t struct_size;
  FfiVersion api_version;
  uint32_t traits;
};
struct FfiMetadataExtension {
  FfiExtension base;
  FfiMetadata* metadata;
};
struct FfiBytes {
  const char* data;
  size_t size;
};
struct FfiScalar {
  int dtype;
  void* value;
};
struct FfiBuffer {
  size_t struct_size;
  FfiExtension* extension;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};
struct FfiError;
struct FfiFuture;
struct FfiErrorCreate {
  size_t struct_size;
  FfiExtension* extension;
  const char* message;
  int code;
};
struct FfiFutureCreate {
  size_t struct_size;
  FfiExtension* extension;
  FfiFuture* future;
};
struct FfiFutureSetAvailable {
  size_t struct_size;
  FfiExtension* extension;
  FfiFuture* future;
};
struct FfiFutureSetError {
  size_t struct_size;
  FfiExtension* extension;
  FfiFuture* future;
  FfiError* error;
};
struct FfiStreamGet {
  size_t struct_size;
  FfiExtension* extension;
  void* context;
  void* stream;  // out; CUDA's
};
struct FfiDeviceOrdinalGet {
  size_t struct_size;
  FfiExtension* extension;
  void* context;
  int32_t device_ordinal;  // out
};
struct FfiApi {
  size_t struct_size;
  FfiExtension* extension;
  FfiVersion version;
  const void* internal;
  FfiError* (*error_create)(FfiErrorCreate*);
  void* others[3];  // Error_GetMessage to Handler_Register
  FfiError* (*stream_get)(FfiStreamGet*);
  void* further[8];  // Type_Register to ThreadPool_NumThreads
  FfiError* (*future_create)(FfiFutureCreate*);
  FfiError* (*future_set_available)(FfiFutureSetAvailable*);
  FfiError* (*future_set_error)(FfiFutureSetError*);
};
// What a jaxlib has that serves GPUs.
struct FfiDeviceApi {
  FfiApi host;
  void* run_id_get;
  FfiError* (*device_ordinal_get)(FfiDeviceOrdinalGet*);
};
struct FfiBuffers {
  size_t struct_size;
  FfiExtension* extension;
  int64_t size;
  int* types;
  FfiBuffer** buffers;
};
struct FfiAttributes {
  size_t struct_size;
  FfiExtension* extension;
  int64_t size;
  int* types;
  FfiBytes** names;
  void** values;
};
struct FfiCall {
  size_t struct_size;
  FfiExtension* extension;
  const FfiApi* api;
  void* context;
  int stage;
  FfiBuffers arguments;
  FfiBuffers results;
  FfiAttributes attributes;
  FfiFuture* future;  // out
};

// Attributes: kind, an int32 (Kind's number); name, a text; reduce_op, root_rank and process_set,
// int32; prescale_factor and postscale_factor, float64. As many results as arguments, whose shapes
// say how much each collective gives. Asynchronous: no thread of XLA's waits for other ranks, but
// for a moment (short_wait.h). A runtime before API 0.2 has no futures: there a call waits, so that
// the ranks' programs have one order.
FfiError* HandleFfiCall(FfiCall* call);

// The same on GPUs, with buffers in the memory of the call's device, as soon as all ranks are
// there: XLA's thread waits for that, and its stream for the result. Calls of one program come to
// that one after the other, in the same order on all ranks. `kind` kFfiSelfCheck exchanges nothing:
// an error where this jaxlib's calls are not what is expected, of a call with one argument whose
// memory is its result's.
inline constexpr int32_t kFfiSelfCheck = -1;
FfiError* HandleFfiCallOnGpu(FfiCall* call);

}  // namespace coordd::tensorflow
