/* coordd: memory for collectives. A part of coordd.h, which includes it: include that. */
#ifndef COORDD_MEMORY_H_
#define COORDD_MEMORY_H_

#ifndef COORDD_COORDD_H_
#error "include coordd/coordd.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --- memory ----------------------------------------------------------------------------------
 *
 * Any memory of the process can be given to a collective. What lies in memory of coordd_alloc takes
 * part without a copy where the ranks of a node map each other's memory (they do, but with
 * COORDD_TRANSPORT=shm): they read inputs and write results in place, which makes large
 * reductions and broadcasts two to three times as fast.
 *
 *     void* memory = NULL;
 *     coordd_alloc(worker, 4 * count, &memory);
 *     coordd_comm_allreduce(comm, memory, memory, count, COORDD_FLOAT32, COORDD_SUM);
 *     coordd_free(worker, memory);
 *
 * It takes part like that in the generation in which it was allocated. With on_failure "raise",
 * coordd_worker_await_generation and coordd_worker_change_members make it private memory of this
 * process, with the same address and contents, since a rank that has not heard of the end yet may
 * still be writing to it; for as long as they run nothing else may write to it. Until then what a
 * failed collective was to fill is undefined. Allocate anew to go on without copies. With
 * on_failure "continue", and without neighbours, mapped memory or room in it, it is private from
 * the start. Children of a fork() do not have it: they end with SIGSEGV when they touch it.
 * mlockall(MCL_CURRENT) without MCL_ONFAULT makes pages of all that could be allocated. */

/* `size_bytes` (at least 1) of memory: 64-byte aligned, all zero, valid until coordd_free or the
 * worker's end (coordd_worker_destroy). Pages are taken as they are touched. INVALID_ARGUMENT;
 * RESOURCE_EXHAUSTED; the generation's end, as coordd_worker_status. *memory is NULL then. */
COORDD_API coordd_status_t coordd_alloc(coordd_worker_t* worker, int64_t size_bytes, void** memory);

/* No collective that is pending uses it. NULL is allowed. INVALID_ARGUMENT: it is not what
 * coordd_alloc has returned for this worker. */
COORDD_API coordd_status_t coordd_free(coordd_worker_t* worker, void* memory);

/* Whether these bytes take part without a copy: COORDD_OK if they lie in one piece of memory of
 * coordd_alloc or coordd_register_memfd that is mapped. INVALID_ARGUMENT: they do not; other
 * processes cannot map pages that are private to this one. FAILED_PRECONDITION: they do, but it is
 * private, and why. Nothing has to be undone. */
COORDD_API coordd_status_t coordd_register(coordd_worker_t* worker, const void* memory,
                                           int64_t size_bytes);

/* The program's own memory: `size_bytes` (at least 1) of the memfd `fd` from `offset` (bytes, a
 * multiple of 4096) on, which then takes part like memory of coordd_alloc, as long and under the
 * same conditions. The memfd has pages of the usual size and F_SEAL_SHRINK, so that nobody can take
 * it away from the others; `fd` may be closed afterwards. *memory is where the bytes are for
 * collectives, and only there: how else the process has mapped the file makes no difference. After
 * the generation's end these addresses have a private copy, if others had the file mapped, while
 * whoever has not heard of the end may still write to it.
 *
 * Collective over the ranks of a node, which all call it, in one order with other calls of it and
 * of coordd_unregister: each with a memfd of its own, of any size. `timeout_seconds`: for the
 * others to come; 0: the worker's. If it fails on one, nothing is mapped on any; *memory is NULL.
 *
 *     int fd = memfd_create("tensors", MFD_CLOEXEC | MFD_ALLOW_SEALING);
 *     ftruncate(fd, size);
 *     fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
 *     coordd_register_memfd(worker, fd, 0, size, 0, &memory);
 *
 * INVALID_ARGUMENT: what `fd` is instead (a memfd that can shrink, a file of a disk, too small, not
 * writable). FAILED_PRECONDITION: another rank's cannot be mapped, and whose; or an earlier call
 * was not carried out by all. DEADLINE_EXCEEDED: which rank did not come. RESOURCE_EXHAUSTED;
 * UNAVAILABLE: a rank is gone; the generation's end, as coordd_worker_status. */
COORDD_API coordd_status_t coordd_register_memfd(coordd_worker_t* worker, int fd, int64_t offset,
                                                 int64_t size_bytes, double timeout_seconds,
                                                 void** memory);

/* Collective as coordd_register_memfd: all ranks of the node give what the same call of it has
 * returned. No collective that is pending uses it. NULL is allowed, and nothing. When its
 * generation is over nobody is waited for. INVALID_ARGUMENT: it is not what coordd_register_memfd
 * has returned for this worker. FAILED_PRECONDITION, DEADLINE_EXCEEDED, UNAVAILABLE: somebody did
 * not take part; this rank does not have the memory any more, then as well. */
COORDD_API coordd_status_t coordd_unregister(coordd_worker_t* worker, void* memory,
                                             double timeout_seconds);

/* --- memory of GPUs ---------------------------------------------------------------------------
 *
 * Memory that NCCL has allocated (ncclMemAlloc), which is what the switch of NVLink reduces in
 * place once it is registered (below). It belongs to the process: no worker is needed, and it
 * outlives them. */

/* `size_bytes` (at least 1) of the device that the process calls `device_index`, valid until
 * coordd_free_device; NCCL rounds it up to its granularity, 2 MiB and more. Waits for the driver.
 * Thread-safe. INVALID_ARGUMENT; UNIMPLEMENTED: coordd was built without NCCL, or NCCL is one
 * before 2.19; NOT_FOUND, UNAVAILABLE: there is no driver, or no NCCL, and why;
 * RESOURCE_EXHAUSTED. *memory is NULL then. */
COORDD_API coordd_status_t coordd_alloc_device(int32_t device_index, int64_t size_bytes,
                                               void** memory);

/* Nothing on the device uses it, and no set has it registered: FAILED_PRECONDITION, and it stays.
 * Waits for communicators that know it and end with their generation, 10 s at most. NULL is
 * allowed, and nothing. INVALID_ARGUMENT: it is not what coordd_alloc_device has returned. */
COORDD_API coordd_status_t coordd_free_device(void* memory);

/* The same two as torch.cuda.memory.CUDAPluggableAllocator calls them, for a torch.cuda.MemPool;
 * coordd.torch.mem_pool() makes one. NULL: none, and why is a warning of the log. `stream`: not
 * used. */
COORDD_API void* coordd_torch_alloc(ptrdiff_t size_bytes, int device_index, void* stream);
COORDD_API void coordd_torch_free(void* memory, ptrdiff_t size_bytes, int device_index,
                                  void* stream);

/* NCCL moves from and to buffers of its own unless it knows the program's memory. What is reduced
 * again and again (buckets of gradients, the segments of a torch.cuda.MemPool) can be registered
 * with the communicators of a process set:
 *
 *     coordd_alloc_device(device, bytes, &bucket);
 *     coordd_register_device(worker, 0, device, bucket, bytes, 0);
 *     ... collectives on the bucket ...
 *     coordd_unregister_device(worker, 0, bucket, 0);
 *     coordd_free_device(bucket);
 *
 * cudaMalloc's memory can be registered, too. It ends with the generation: register anew in the
 * next one. COORDD_GPU_REGISTER=0 on any rank leaves all of it out. With symmetric on all ranks,
 * and NCCL 2.27 or later, what coordd_alloc_device has given, registered from its beginning and in
 * equal sizes on all ranks, is a symmetric window of NCCL's (ncclCommWindowRegister), from which it
 * takes kernels of its own between GPUs of one NVLink domain; where one rank differs all of it is
 * registered as any other memory, and a warning says which rank gave what. */

/* Collective: all ranks of the set call it, in one order with other calls of it, each with memory
 * of its own device, `size_bytes` of it (at least 1). Waits for the others, for what was launched
 * before, and for calls that other threads have begun before in the set. Where a rank leaves a call
 * out, or is refused it alone, those of other ranks time out and name it, and the next one that all
 * of them make is in step again. From then on all ranks give to a collective what they have all
 * registered, in place or both input and output, or none of them does; mixing is not defined by
 * NCCL. No rank joins (coordd_join) while memory is registered: the generation would end. At most
 * 64 regions in a set.
 *
 * UNIMPLEMENTED: not all ranks can, and why (COORDD_GPU_REGISTER, no NCCL, NCCL before 2.19); with
 * on_failure "continue". INVALID_ARGUMENT: it is not memory of the device, or overlaps with what is
 * registered. DEADLINE_EXCEEDED: which ranks have not come, or have given up; half a minute later
 * at most while coordd is away. Where one comes later and the device's part was under way, the
 * generation ends then, since the others would have what this rank has not.
 * RESOURCE_EXHAUSTED; UNAVAILABLE; the generation's end, as coordd_worker_status. */
COORDD_API coordd_status_t coordd_register_device(coordd_worker_t* worker, int32_t process_set,
                                                  int32_t device_index, void* memory,
                                                  int64_t size_bytes, double timeout_seconds);

/* Of this rank alone, before the memory is freed. No collective that is pending uses it, and none
 * will, here or on another rank, before that has called this, too. Waits until the device is
 * through with what was launched before and NCCL has let go, also where the generation or the set
 * has ended. NULL is allowed, and nothing. INVALID_ARGUMENT: it does not begin what is registered
 * in the set. FAILED_PRECONDITION: another thread's registration in the set is under way.
 * DEADLINE_EXCEEDED: the device is not through, or NCCL has not let go; another call waits on. The
 * generation's end, as coordd_worker_status, of which the program has not been told: NCCL lets go
 * when it knows, so it calls again. */
COORDD_API coordd_status_t coordd_unregister_device(coordd_worker_t* worker, int32_t process_set,
                                                    void* memory, double timeout_seconds);

#ifdef __cplusplus
}
#endif

#endif /* COORDD_MEMORY_H_ */
