// What fake_cuda.so has besides the driver's own functions, found with dlsym by the tests and by
// fake_nccl.so. It behaves as a driver with GPUs whose memory is host memory: streams are threads,
// so what is asynchronous there is asynchronous here, and kernels are host_kernels.cc's.
#pragma once

#include "worker/gpu/cuda/cuda_api.h"

extern "C" {

// "devices" (8), "driver" (13000), "capability" (9, the major one), "mig" (0; 1: slices),
// "init_error" (0), "memory_limit" (bytes; 0: none), "multicast" (0; 1: of all devices),
// "capturing" (1: every stream is captured), "free_locks" (1, the strictest that a driver may be:
// who frees memory holds the driver's lock until the device is idle, and nobody else makes a
// context current, launches, copies, records, waits or allocates meanwhile), "collectives" (0: any
// number; how many kernels of collectives there is room for on a device: each stays until all its
// ranks have come, and what finds no room waits, also after its abort). Before cuInit the variable
// FAKE_CUDA is read, "devices=2,init_error=100". Unknown names end the process.
// CUDA_DEVICE_MAX_CONNECTIONS=1 is obeyed: all streams of a device share one queue, in which a
// stream that waits for an event, or a kernel behind another one of its stream, holds up what was
// launched later on any stream.
void fake_cuda_set(const char* name, long value);

// Runs on the stream, in its order.
void fake_cuda_enqueue(coordd::CudaStream stream, void (*run)(void*), void* argument);

// Around what is a kernel of a collective on a device; the first one waits until there is room.
void fake_cuda_begin_collective(int device);
void fake_cuda_end_collective(int device);
long fake_cuda_collectives_at_work(int device);  // that have found room

// Whether the stream is captured into a graph; a part of that graph, which runs with each launch,
// and `end`, once nothing refers to the graph any more. REQUIRES: the stream is captured.
int fake_cuda_is_capturing(coordd::CudaStream stream);
void fake_cuda_capture(coordd::CudaStream stream, void (*run)(void*), void (*end)(void*),
                       void* argument);

// A word of pinned memory for a library above the driver, made for this thread's current device,
// and its end, which needs no current device and waits as cuMemFreeHost does.
void* fake_cuda_allocate_pinned();
void fake_cuda_free_pinned(void* pointer);

// The current device of this thread; -1: none.
int fake_cuda_current_device();
// The major compute capability of the devices.
int fake_cuda_capability();
// The device whose memory this is; -1: host memory, or none at all.
int fake_cuda_device_of(const void* pointer);
// Allocations of any kind, streams and events that have not been freed.
long fake_cuda_live_objects();
// How often a kernel was launched that scales.
long fake_cuda_scalings();
// How often cuModuleGetFunction was called.
long fake_cuda_functions_asked();
// Threads that hold the driver's lock ("free_locks").
int fake_cuda_lock_holders();
long fake_cuda_lock_holders_of(int device);
}
